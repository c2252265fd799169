"""Arms that stand for a matrix of sampling parameters."""

import pytest

from audit.suite.loader import load_suite
from audit.suite.matrix import cells
from tests.audit.invoke import invoke
from tests.audit.suite_files import SUITE, write_suite

VARIED = """
    vary:
      temperature: [0.5, 1]
      bad_words: [[[3]], [[4, 5]]]
      top_k: [1]
"""


def test_alone_then_in_pairs_of_different_parameters():
    found = [suffix for suffix, _ in cells({"top_k": [1, 5], "top_p": [0.5]}, pairs=True)]
    assert found == ["", ".top_k-1", ".top_k-5", ".top_p-0.5", ".top_k-1.top_p-0.5", ".top_k-5.top_p-0.5"]


def test_without_vary_there_is_one_arm():
    assert [suffix for suffix, _ in cells({}, pairs=True)] == [""]


def varied(tmp_path, extra=""):
    assert "verifier: chain" in SUITE
    return write_suite(tmp_path, SUITE.replace("verifier: chain", f"verifier: chain{VARIED}{extra}", 1))


def test_a_suite_has_one_arm_per_value(tmp_path):
    arms = {arm.name: arm for arm in load_suite(varied(tmp_path)).arms}
    names = ["temperature-0.5", "temperature-1", "bad_words-0", "bad_words-1", "top_k-1"]
    assert [name for name in arms if name.startswith("sampled")] == ["sampled", *(f"sampled.{name}" for name in names)]
    assert arms["sampled.bad_words-1"].sampling.bad_words == ((4, 5),)
    assert arms["sampled.temperature-1"].sampling.temperature == 1.0
    assert arms["sampled.top_k-1"].sampling.temperature == arms["sampled"].sampling.temperature


def test_pairs_multiply(tmp_path):
    arms = [arm.name for arm in load_suite(varied(tmp_path, "    pairs: true\n")).arms]
    assert len([name for name in arms if name.startswith("sampled")]) == 1 + 5 + (2 * 2 + 2 * 1 + 2 * 1)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("top_k: [1]", "top_k: [-1]", "arms[1].vary.top_k[0] is -1; write a number of at least 0"),
        ("top_k: [1]", "topk: [1]", 'unknown sampling parameter "topk"; did you mean top_k?'),
        ("top_k: [1]", "top_k: []", "fewer than 1 entries"),
        ("top_k: [1]", "top_k: [1, 1]", "already used in arms"),
    ],
)
def test_a_mistake_is_told_at_its_place(tmp_path, old, new, says):
    path = varied(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    result = invoke("validate", str(path))
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert says in line


def test_the_backends_own_settings_are_the_backends_to_refuse(tmp_path):
    path = write_suite(tmp_path, SUITE.replace("verifier: chain", "verifier: chain\n    engine: {speed: 3}", 1))
    result = invoke("validate", str(path))
    assert result.exit_code == 2
    assert "arms[1].engine" in result.stderr or "has no settings of its own; remove engine" in result.stderr


def test_company_has_sampling_parameters(tmp_path):
    path = write_suite(tmp_path, SUITE.replace("verifier: chain", "verifier: chain\n    beside: {temperature: 0.8}", 1))
    assert load_suite(path).arms[1].beside.temperature == 0.8
    path.write_text(path.read_text().replace("temperature: 0.8}", "top_p: 2}", 1))
    assert "arms[1].beside.top_p is 2" in invoke("validate", str(path)).stderr
