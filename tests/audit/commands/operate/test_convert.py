"""`audit convert` ties a model to its source, and refuses in one line what it cannot convert."""

import pytest
from click.testing import CliRunner

from audit.cli import main
from tests.engine.backends.onnxruntime_genai.builders import BUILDER, REFUSING, write_program


def converted(*arguments):
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


def test_digests_of_both_are_printed(tmp_path):
    python = write_program(tmp_path, BUILDER)
    done = converted("bundled:target", "--to", "onnx", "--out", tmp_path / "out", "--python", python)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("sha256:") == 2
    assert "rounding   none" in done.stdout
    assert (tmp_path / "out" / "conversion.json").is_file()


@pytest.mark.parametrize(
    ("model", "program", "out", "words"),
    [
        ("bundled:draft", BUILDER, "out", "head size 24 is not a multiple of 16"),
        ("bundled:target", REFUSING, "out", "no such model"),
        ("bundled:nothing", BUILDER, "out", "bundled:nothing"),
        ("bundled:target", BUILDER, "none/out", "make it first"),
        ("bundled:target", BUILDER, "python", "name a new folder"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_nothing(tmp_path, model, program, out, words):
    python = write_program(tmp_path, program)
    done = converted(model, "--to", "onnx", "--out", tmp_path / out, "--python", python)
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["python"]
