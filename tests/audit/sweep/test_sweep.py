"""`audit sweep`: ranges, intervals, the choice on made-up rounds, and real sweeps through the command line."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest

from audit.commands.run.sweep import parse_gammas
from audit.errors import UserError
from audit.suite.loader import load_suite
from audit.suite.spec import Case
from audit.sweep.choice import Advice, MedianInterval, Recommendation, advise, alike, coverage, fastest, median_interval
from audit.sweep.report import recommendation
from audit.sweep.sweep import PLAIN, SweepOptions, TimedRun, interleaved, point_of, sweep, thinned
from engine.record.cost import Costs, StepTimes
from engine.record.metrics import Acceptance
from tests.audit.invoke import invoke

SUITE = """\
version: 1
name: lengths
seed: 5
backend: scripted
batch_size: 2
models: {target: "scripted:1", draft: "scripted:2"}
workloads:
  - {name: words, prompts: words.jsonl}
sampling: {max_new_tokens: 12}
arms:
  - name: greedy
    proposer: {kind: draft_model, model: draft, gamma: 4}
    verifier: greedy
  - name: lookup
    proposer: {kind: ngram, gamma: 4}
    verifier: chain
    sampling: {temperature: 1}
"""


@pytest.fixture
def suite(tmp_path):
    rows = [json.dumps({"id": f"w{index}", "prompt": "abc abc abc ab"[index:]}) for index in range(4)]
    (tmp_path / "words.jsonl").write_text("\n".join(rows) + "\n")
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return path


# ranges


@pytest.mark.parametrize(
    ("text", "gammas"),
    [("1..8", tuple(range(1, 9))), ("1,2,4", (1, 2, 4)), ("3", (3,)), ("8, 1..3,2", (1, 2, 3, 8)), ("5..5", (5,))],
)
def test_ranges(text, gammas):
    assert parse_gammas(text) == gammas


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no draft length; write 1..8 or 1,2,4"),
        ("1-8", '"1-8" is no draft length'),
        ("1..", "is no draft length"),
        ("1,,2", "is no draft length"),
        ("8..1", "8..1 runs backwards; write 1..8"),
        ("0..3", "0..3 leaves 1 to 64"),
        ("2..65", "2..65 leaves 1 to 64"),
        ("\u0661", "is no draft length"),
    ],
)
def test_bad_ranges_are_named_with_their_mend(text, said):
    with pytest.raises(UserError) as caught:
        parse_gammas(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("--gamma ")


# intervals


def test_an_interval_is_made_of_order_statistics():
    # 1 - 2 * (1 + 10) / 2^10 for the second of ten, 1 - 2 * (1 + 10 + 45) / 2^10 = 0.891 for the third
    assert median_interval([float(x) for x in range(10)]) == MedianInterval(4.5, 1.0, 8.0, pytest.approx(1 - 22 / 1024))
    assert median_interval([3.0, 1.0, 2.0]) == MedianInterval(2.0, 1.0, 3.0, 0.75)
    assert median_interval([7.0]) == MedianInterval(7.0, 7.0, 7.0, 0.0)
    assert coverage(6, 1) == pytest.approx(1 - 2 / 64)


@pytest.mark.slow
def test_an_interval_covers_as_often_as_it_says():
    draws = np.random.default_rng(3).exponential(size=(4000, 9))
    found = [median_interval(list(row)) for row in draws]
    held = np.mean([each.low <= np.log(2) <= each.high for each in found])
    assert held == pytest.approx(found[0].coverage, abs=4 * np.sqrt(0.04 * 0.96 / 4000))


def test_nothing_has_no_median():
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


# rounds


@pytest.mark.slow
def test_jobs_take_turns_after_an_unmeasured_round_and_without_garbage_collection():
    calls = []

    def job(name):
        return lambda: calls.append((name, gc.isenabled())) or name.upper()

    timed = list(interleaved({"a": job("a"), "b": job("b")}, rounds=3))
    assert [(each.round, each.job) for each in timed] == [
        (0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")
    ]  # fmt: skip
    assert [name for name, _ in calls] == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert [enabled for _, enabled in calls[2:]] == [False] * 6
    assert all(each.seconds >= 0 and each.result == each.job.upper() for each in timed)
    assert gc.isenabled()


# the choice


def test_the_fastest_length_is_chosen_and_not_the_most_accepted():
    rates = {1: [10.0, 11.0, 12.0], 4: [14.0, 13.0, 15.0], 8: [12.0, 14.0, 11.0]}
    assert fastest(rates) == 4
    assert fastest({2: [5.0], 1: [5.0]}) == 1


def test_lengths_that_the_rounds_cannot_tell_apart_are_named():
    best = [10.0, 20.0, 10.0, 20.0, 10.0, 20.0]
    rates = {
        1: [0.9 * each for each in best],  # always slower, though the ranges overlap
        3: best,
        4: [each * factor for each, factor in zip(best, [0.9, 1.05, 0.95, 1.1, 0.9, 0.97], strict=True)],
    }
    assert alike(rates, 3) == (4,)


@pytest.mark.parametrize(
    ("low", "high", "held", "advice"),
    [
        (1.01, 1.4, 0.97, Advice.SPECULATE),
        (0.7, 0.99, 0.97, Advice.PLAIN),
        (0.99, 1.4, 0.97, Advice.NO_DIFFERENCE),
        (1.0, 1.4, 0.97, Advice.NO_DIFFERENCE),
        (1.5, 1.6, 0.875, Advice.TOO_FEW_ROUNDS),
    ],
)
def test_advice_needs_an_interval_that_excludes_one(low, high, held, advice):
    assert advise(MedianInterval(1.2, low, high, held)) is advice


@pytest.mark.parametrize(
    ("advice", "begins"),
    [
        (Advice.SPECULATE, "recommended: gamma 4: measured again, gamma 4 is 1.20 times plain decoding (1.10..1.30)"),
        (Advice.PLAIN, "do not speculate: measured again"),
        (Advice.NO_DIFFERENCE, "no difference shown: measured again"),
        (Advice.TOO_FEW_ROUNDS, "too few rounds to say: "),
    ],
)
def test_the_sentence_of_each_advice(advice, begins):
    said = recommendation(Recommendation(advice, 4, MedianInterval(1.2, 1.1, 1.3, 0.97), (3, 5)))
    assert said.startswith(begins)
    assert said.endswith("; not distinguishable from it: gamma 3, 5") == (advice is Advice.SPECULATE)


def test_fewer_prompts_are_spread_over_the_workloads():
    cases = [Case(f"w{i // 5}/{i}", f"w{i // 5}", "d") for i in range(15)]
    assert [case.workload for case in thinned(cases, 3)] == ["w0", "w1", "w2"]
    assert len({case.id for case in thinned(cases, 7)}) == 7
    assert thinned(cases, None) == thinned(cases, 99) == tuple(cases)


# measuring


def test_a_point_is_set_against_plain_decoding_of_the_same_round():
    counts = Acceptance(10, 40, 20, 30, 10, (9, 6, 3, 2), (1, 3, 3, 1, 2))
    times = [StepTimes(80.0, 150.0), StepTimes(160.0, 300.0), StepTimes(40.0, 75.0)]
    plain_times = [StepTimes(0.0, 100.0), StepTimes(0.0, 200.0), StepTimes(0.0, 50.0)]
    own = [TimedRun(rate, each, counts) for rate, each in zip([30.0, 16.0, 60.0], times, strict=True)]
    plain = [TimedRun(rate, each, counts) for rate, each in zip([20.0, 10.0, 30.0], plain_times, strict=True)]
    point = point_of(4, {PLAIN: plain, "4": own})
    assert (point.rate.median, point.speedup.median, point.speedup.high) == (30.0, 1.6, 2.0)
    assert point.costs == Costs(pytest.approx(0.2), pytest.approx(1.5))
    assert point.modelled == pytest.approx(3.0 / (1.5 + 4 * 0.2))


@pytest.mark.slow
def test_each_length_is_drafted_to_its_full_length(suite):
    options = SweepOptions((1, 3), ("greedy",), rounds=1)
    (arm,) = sweep(load_suite(suite), options, lambda _: None).arms
    assert {point.gamma: len(point.acceptance.kept) for point in arm.points} == {1: 1, 3: 3}
    assert arm.config["gamma"] == arm.choice.gamma


# the command


@pytest.mark.slow
def test_a_sweep_prints_a_table_and_writes_json(suite, tmp_path):
    out = tmp_path / "sweep.json"
    result = invoke("sweep", str(suite), "--gamma", "1,3", "--rounds", "2", "--max-prompts", "3", "--json", str(out))
    assert (result.exit_code, result.exception) == (0, None), result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "greedy: draft_model, greedy, temperature 0; 3 requests of at most 12 tokens"
    assert [line.split()[0] for line in lines[2:5]] == ["plain", "1", "3"]
    assert lines[5].startswith("too few rounds to say: measured again, gamma ")
    assert any(line.startswith("lookup: ngram, chain, temperature 1") for line in lines)
    assert "record level tokens; batches of 2" in lines[-2]
    assert lines[-1] == "a measurement of this machine at this time: nothing was checked and nothing was stored"
    document = json.loads(out.read_text())
    assert document["suite"]["cases"] == 3
    assert [arm["name"] for arm in document["arms"]] == ["greedy", "lookup"]
    greedy = document["arms"][0]
    assert greedy["recommendation"]["advice"] == "too few rounds to say"
    assert greedy["config"]["record"] == "tokens"
    for point in greedy["points"]:
        assert 1 <= point["acceptance_length"] <= point["gamma"] + 1
        step = point["sigma"] + point["gamma"] * point["rho"]
        # drafting and verifying gamma tokens is what a step costs above a plain forward
        assert 1 + point["gamma"] * point["token_cost"] == pytest.approx(step)
        assert point["modelled_speedup"] == pytest.approx(point["tokens_per_forward"] / step)
        assert point["tokens_per_second"]["low"] <= point["tokens_per_second"]["median"]


@pytest.mark.medium
def test_one_arm_may_be_named_and_nothing_is_stored(suite, tmp_path, monkeypatch):
    monkeypatch.setenv("AUDIT_STORE", str(tmp_path / "audit.db"))
    result = invoke("sweep", str(suite), "--gamma", "2", "--rounds", "1", "--arm", "lookup")
    assert result.exit_code == 0
    assert "greedy:" not in result.stdout
    assert result.stderr.splitlines()[0] == "lookup: round 1 of 1"
    assert not (tmp_path / "audit.db").exists()


@pytest.mark.slow
def test_a_broken_arm_is_called_broken(suite):
    text = suite.read_text().replace("verifier: chain", "verifier: chain\n    fault: argmax_draft_soft_q")
    suite.write_text(text)
    result = invoke("sweep", str(suite), "--gamma", "1", "--rounds", "1", "--max-prompts", "1", "--arm", "lookup")
    assert "lookup (broken on purpose: argmax_draft_soft_q): " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gamma", "4..1"), 'audit: --gamma "4..1": 4..1 runs backwards; write 1..4'),
        (("--gamma", "1", "--arm", "greddy"), "no arm named 'greddy'; did you mean"),
        (("--gamma", "1", "--json", "no/such/place.json"), "no/such/place.json: its folder does not exist"),
        (("--gamma", "1", "--json", "."), "this is a folder; name a file in it"),
    ],
)
def test_bad_input_is_one_line_and_two(suite, arguments, said):
    result = invoke("sweep", str(suite), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert (len(result.stderr.splitlines()), result.stdout) == (1, "")


def test_an_interrupted_sweep_recommends_nothing(suite, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("audit.sweep.sweep._sweep_arm", stop)
    result = invoke("sweep", str(suite), "--gamma", "1", "--json", str(tmp_path / "out.json"))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "audit: interrupted; a partial sweep gives no recommendation, run it again\n"
    assert not (tmp_path / "out.json").exists()
