"""Every benchmark runs, says what it measured, and writes it down. No time is asserted."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

from audit.sweep.sweep import TimedJob
from tests.audit.executors.spread_suites import spread_suite
from tests.bench.__main__ import BENCHES, main
from tests.bench.engines import METHODS
from tests.bench.figures import Runs
from tests.bench.levels import main as levels
from tests.bench.serve import OURS
from tests.bench.serve import main as serve
from tests.bench.setting import Setting, lean_pair, requests_of
from tests.bench.vllm import TimedOutputs, endless, lines, own_job
from tests.bench.vllm import main as vllm
from tests.bench.vocabulary import main as vocabulary
from tests.bench.workers import main as workers

pytestmark = pytest.mark.slow
REFERENCES = {
    "engines": ("transformers plain", "x transformers plain"),
    "sizes": ("transformers plain, batch 1", "x transformers plain"),
    "recording": ("off", "x off"),
    "numerics": ("fast plain", "x fast"),
    "batch": ("plain, batch 1", "x batch 1"),
    "context": ("plain, 128 tokens", "x plain"),
    "gamma": (None, "S"),
}


@pytest.mark.parametrize("name", BENCHES)
def test_a_benchmark_runs(name, tmp_path):
    out = tmp_path / "figures.json"
    options = ["--target", "bundled:target", "--draft", "bundled:draft", "--domains", "json", "--json", str(out)]
    result = CliRunner().invoke(main, [name, "--quick", *options])
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    arm, column = REFERENCES[name]
    for table in document["tables"]:
        assert table["notes"] == []
        for line in table["lines"]:
            assert line["arm"] in result.stdout
            assert line[column]["median"] > 0
            assert math.isclose(line[column]["median"], 1.0) or line["arm"] != arm
            assert line.get("outputs equal", "1/1") in ("1/1", "8/8")


def test_workers_side_by_side_run(tmp_path):
    path = spread_suite(tmp_path)
    result = CliRunner().invoke(workers, ["--suite", str(path), "--rounds", "1", "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    assert "2 workers : 1 worker" in result.output
    assert "content roots equal: yes" in result.output


def test_recording_by_vocabulary_runs():
    options = ["--sizes", "2048", "--rounds", "1", "--requests", "1", "--tokens", "128", "--judge-at", "2048"]
    result = CliRunner().invoke(vocabulary, options)
    assert result.exit_code == 0, result.output
    assert "rows kept whole agree" in result.output
    assert "peak memory" in result.output


def test_a_fault_is_caught_at_both_levels(tmp_path):
    options = ["--tokens", "64", "--seeds", "1", "--fault", "argmax_draft_soft_q", "--arms", str(tmp_path / "arms")]
    first = CliRunner().invoke(levels, options)
    assert "| [q_contract](checks/q_contract.md) | 1 | 1 | 1 | 1 |" in first.output
    assert len((tmp_path / "arms").read_text().splitlines()) == 2
    assert CliRunner().invoke(levels, options).output == first.output
    assert len((tmp_path / "arms").read_text().splitlines()) == 2, "nothing is measured twice"


def test_a_domain_that_does_not_exist_is_named():
    result = CliRunner().invoke(main, ["batch", "--domains", "poems"])
    assert result.exit_code == 2
    assert "no domain 'poems'" in result.output


def test_our_servers_run_beside_each_other(tmp_path):
    out = tmp_path / "figures.json"
    models = ["--target", "bundled:target", "--draft", "bundled:draft", "--group", "json"]
    result = CliRunner().invoke(serve, ["--quick", "--json", str(out), "--vllm", str(tmp_path / "none"), *models])
    assert result.exit_code == 0, result.output
    (table,) = json.loads(out.read_text())["tables"]
    assert [line["arm"] for line in table["lines"]] == list(OURS)
    assert all(line["x own plain"]["median"] > 0 for line in table["lines"])
    assert {line["answers as ours plain"] for line in table["lines"]} == {"1/1"}
    assert "no vLLM" in result.output


def test_our_engine_runs_where_vllm_is_missing(tmp_path):
    out = tmp_path / "figures.json"
    models = ["--target", "bundled:target", "--draft", "bundled:draft", "--group", "json", "--mode", "fixed"]
    result = CliRunner().invoke(vllm, ["--quick", "--json", str(out), "--vllm", str(tmp_path / "none"), *models])
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert document["setting"]["mode"] == "fixed"
    (table,) = document["tables"]
    arms = {line["arm"]: line for line in table["lines"]}
    assert list(arms) == [f"ours {method}, batch {rows}" for rows in (1, 8) for method in METHODS]
    assert {line["answers equal"] for line in arms.values()} == {"1/1"}
    assert {line["x vllm, same method"] for line in arms.values()} == {None}
    assert all(arms[f"ours plain, batch {rows}"]["x own plain"]["median"] == 1.0 for rows in (1, 8))
    assert "no vLLM" in result.output


def test_lines_compare_rounds_of_the_same_method_and_batch():
    seconds = {"ours plain": 2.0, "vllm plain": 4.0, "ours ngram": 1.0, "vllm ngram": 8.0}
    runs = {}
    for name, spent in seconds.items():
        for rows in (1, 8):
            found = [TimedOutputs(((1, 2), (3, 4 if rows == 1 else 5)), spent * index / rows) for index in (1, 2, 3)]
            jobs = [TimedJob(index, name, 1000.0, each) for index, each in enumerate(found)]
            runs[f"{name}, batch {rows}"] = jobs
    figures = {line.arm: line.figures for line in lines(Runs(runs))}
    assert figures["ours ngram, batch 8"]["x vllm, same method"].median == 8.0
    assert figures["ours ngram, batch 8"]["x own plain"].median == 2.0
    assert figures["vllm ngram, batch 8"]["x own plain"].median == 0.5
    assert figures["vllm plain, batch 1"]["tokens/s"].median == 0.5
    assert figures["vllm plain, batch 1"]["x vllm, same method"] is None
    assert [figures[f"vllm plain, batch {rows}"]["answers equal"] for rows in (1, 8)] == ["2/2", "1/2"]


def test_answers_beside_vllm_are_equally_long():
    setting = Setting("bundled:target", "bundled:draft", prompts=4, length=128)
    requests = requests_of(setting, "json")
    pair = lean_pair(setting)
    ending = own_job(pair, setting, "plain", 8, requests)().tokens
    assert any(len(answer) < 128 for answer in ending), "these prompts show nothing"
    for method in METHODS:
        answers = own_job(pair, setting, method, 8, endless(requests))().tokens
        assert [len(answer) for answer in answers] == [128] * len(requests)
