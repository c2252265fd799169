"""Suites that are small to write and endless to read: each is refused with its line before the work is done."""

from __future__ import annotations

import time

import pytest

from audit.errors import UserError
from audit.suite.loader import MOST_REQUESTS, load_suite
from audit.suite.matrix import MOST_CELLS, cell_count, cells
from audit.text.documents import MAX_NODES, parse_yaml
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file


def test_a_matrix_of_too_many_arms_is_refused_by_its_count(tmp_path):
    path = suite_file(tmp_path)
    values = ", ".join(str(round(0.002 * i + 0.1, 4)) for i in range(40))
    path.write_text(path.read_text() + f"    vary: {{temperature: [{values}], top_p: [{values}]}}\n    pairs: true\n")
    began = time.process_time()
    with pytest.raises(UserError, match=f"has 1681 arms, more than {MOST_CELLS}"):
        load_suite(path)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("pairs", [True, False])
def test_the_count_is_that_of_the_cells(pairs):
    vary = {"top_k": [1, 2], "top_p": [0.5], "min_p": [0.1, 0.2, 0.3]}
    assert cell_count(vary, pairs=pairs) == len(list(cells(vary, pairs=pairs)))


def test_too_many_requests_are_refused_by_their_count(tmp_path):
    path = suite_file(tmp_path)
    path.write_text(path.read_text().replace("samples: 2", "samples: 100000"))
    with pytest.raises(UserError, match=rf"suite\.yaml:7: .* 400000 requests per arm, more than {MOST_REQUESTS}"):
        load_suite(path)


@pytest.mark.slow
def test_a_document_of_too_many_values_is_not_read_to_its_end():
    text = b"a: 1\nb: [" + b"[]," * 300_000 + b"]\n"
    began = time.process_time()
    with pytest.raises(UserError, match=f"x:2: more than {MAX_NODES} values; split the file"):
        parse_yaml("x", text)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_number_of_threads_that_no_machine_has_is_a_usage_error(tmp_path, command):
    result = invoke(command, str(suite_file(tmp_path)), "--threads", "1" + "0" * 20)
    assert result.exit_code == 2
    assert "--threads" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", "{long}"),
        ("validate", "{loop}"),
        ("validate", "\udcff\udcfe.yaml"),
        ("list", "--store", "{long}"),
        ("list", "--store", "{loop}"),
        ("list", "--store", "{store}", "--limit", "1" + "0" * 30),
        ("gate", "latest", "--policy", "{long}", "--store", "{store}"),
        ("verify", "{long}"),
        ("run", "quickstart", "--results", "{long}", "--store", "{store}"),
    ],
    ids=lambda arguments: " ".join(arguments[::2])[:30].encode("ascii", "replace").decode(),
)
def test_arguments_that_no_file_has_are_one_line(tmp_path, arguments):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    places = {"long": "x" * 300, "loop": str(tmp_path / "loop"), "store": str(tmp_path / "audit.db")}
    result = invoke(*(each.format(**places) for each in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    assert result.stderr.count("audit: ") + result.stderr.count("Error: ") == 1
    assert not (tmp_path / "audit.db").exists()
