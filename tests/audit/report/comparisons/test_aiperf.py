"""AIPerf's `profile_export.jsonl`: a file that AIPerf 0.13 wrote against `audit serve`, and files with mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit.report.comparisons.aiperf import read_aiperf
from audit.stats.acceptance.estimators import Estimator
from tests.audit.invoke import invoke

REAL = Path(__file__).parent / "data" / "aiperf_0_13.jsonl"


def record(steps, drafted, accepted, **more):
    """A record of the published form; the histogram has all accepted tokens of a step in it."""
    account = {
        "engine": "vllm",
        "num_spec_steps": steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        **more,
    }
    return {"metadata": {"benchmark_phase": "profiling"}, "metrics": {}, "spec_decode_acceptance": account}


def written(tmp_path, *records):
    path = tmp_path / "profile_export.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records), "utf-8")
    return path


def test_a_file_that_aiperf_wrote_gives_aiperfs_figures():
    found = read_aiperf(REAL)
    lines = [json.loads(line) for line in REAL.read_text("utf-8").splitlines()]
    counted = [line for line in lines if line.get("spec_decode_acceptance")]
    assert (found.requests, found.failed, found.engines) == (len(lines), len(lines) - len(counted), ("vllm",))
    values = {one.estimator: one.value for one in found.estimates}
    # the metrics of AIPerf stand in the same lines
    rates = [line["metrics"]["spec_decode_draft_acceptance_rate"]["value"] / 100 for line in counted]
    lengths = [line["metrics"]["spec_decode_acceptance_length"]["value"] for line in counted]
    assert values[Estimator.REQUEST_RATE] == pytest.approx(sum(rates) / len(rates))
    assert values[Estimator.REQUEST_LENGTH] == pytest.approx(sum(lengths) / len(lengths))


def test_the_estimators_differ_as_computed_by_hand(tmp_path):
    warm = {**record(9, 90, 90), "metadata": {"benchmark_phase": "warmup"}}
    failed = {"metadata": {}, "metrics": {}, "error": {"message": "no"}}
    found = read_aiperf(written(tmp_path, record(3, 10, 9), warm, failed, record(1, 2, 0)))
    assert [one.value for one in found.estimates] == [0.75, pytest.approx(0.45), 3.25, 2.5]
    assert (found.requests, found.failed, found.warmup) == (4, 1, 1)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (record(1, 4, 5), "5 accepted tokens are more than the 4 drafted ones"),
        (record(2, 8, 5, completion_tokens=4), "5 accepted tokens are more than the 4 emitted ones"),
        (record(2, 8, 5, acceptance_histogram={"2": 1}), "acceptance_histogram has 1 steps, num_spec_steps is 2"),
        (record(2, 8, 5, acceptance_histogram={"2": 2}), "acceptance_histogram does not add up to 5"),
        (record(2, 8, 5, per_step_accepted=[4, 4]), "per_step_accepted does not add up to 5 tokens"),
        (record(2, 8, 5, acceptance_histogram=[1, 1]), "are not whole numbers"),
        (record(2, 8, "5"), "spec_decode_acceptance needs whole numbers"),
        ({"metadata": {}}, "no record of AIPerf"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_exit_code_2(tmp_path, broken, words):
    path = written(tmp_path, record(3, 10, 9), broken)
    done = invoke("import", str(path), "--format", "aiperf")
    assert done.exit_code == 2
    (line,) = done.stderr.strip().splitlines()
    assert f"{path}:2: " in line
    assert words in line


@pytest.mark.parametrize("content", ["", "{\n", "\udcff"])
def test_what_is_no_such_file_is_named(tmp_path, content):
    path = tmp_path / "file.jsonl"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    done = invoke("import", str(path), "--format", "aiperf")
    assert (done.exit_code, len(done.stderr.strip().splitlines())) == (2, 1)
    assert str(path) in done.stderr
    assert invoke("import", str(tmp_path / "absent"), "--format", "aiperf").exit_code == 2


def test_the_figures_are_shown_as_another_tools(tmp_path):
    path = written(tmp_path, record(3, 10, 9), record(1, 2, 0))
    done = invoke("import", str(path), "--format", "aiperf")
    assert done.exit_code == 0
    assert "figures of AIPerf" in done.stdout
    assert "no claim is certified from them" in done.stdout
    assert json.loads(invoke("import", str(path), "--format", "aiperf", "--json").stdout)["source"] == "AIPerf"
    assert invoke("import", str(path), "--json").exit_code == 2
