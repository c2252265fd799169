"""Runs that stop by themselves, on scripted models: when they stop, why, and that they go on after an interruption."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from scipy.stats import binom

from audit.api.running import Quiet
from audit.errors import UserError
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.runs.interim_looks import STOP_RULE, RunStopRule, interim_results, share
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import for_round, prepare
from audit.runs.rounds import Rounds, repeat_suite
from audit.runs.runner import resume, run
from audit.store import RunStatus, Store
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.audit.runs.round_suites import ROUND, suite_file
from tests.support.observers import StopsAfter
from tests.support.tiers import fast_first


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "audit.db"), create=True) as opened:
        yield opened


def ended(store, outcome):
    return looks_of(store, outcome)[-1]


def looks_of(store, outcome):
    return interim_results(store.load_run(outcome.run).events)


def decide(folder, store, most, **options):
    return run(prepare(load_suite(suite_file(folder, **options))), store, Quiet(), RunStopRule(most))


@pytest.mark.medium
def test_a_clean_engine_stops_when_its_margin_is_reached(tmp_path, store):
    outcome = decide(tmp_path, store, 100 * ROUND, margin=0.1, more=", accounting: {}")
    last = ended(store, outcome)
    assert (outcome.exit_code, last.stopped, last.undecided) == (0, "every bound is reached", ())
    # one round is too little for this margin, a hundred would be a waste
    assert 1 < last.look < 20
    assert last.repetitions == 2 ** (last.look - 1)
    assert last.tokens == last.repetitions * ROUND
    checks = {check.check: check for check in store.checks(outcome.run)}
    assert {check.verdict for check in checks.values()} == {Verdict.CERTIFIED}
    decided_at = {name: check.details["look"]["number"] for name, check in checks.items()}
    assert max(decided_at.values()) == last.look
    assert {check.details["look"]["share"] for check in checks.values()} == set(map(share, decided_at.values()))
    record = store.load_run(outcome.run)
    assert all(arm.spec[STOP_RULE]["max_tokens"] == 100 * ROUND for arm in record.arms)
    assert record.status is RunStatus.FINISHED
    assert store.verify_root(outcome.run)


@pytest.mark.medium
def test_no_stream_is_used_twice(tmp_path, store):
    outcome = decide(tmp_path, store, 3 * ROUND, margin=0.001)
    assert [each.repetitions for each in looks_of(store, outcome)] == [1, 2, 3]
    for arm in store.load_run(outcome.run).arms:
        requests = store.load_arm(outcome.run, arm.name).requests
        assert len({request.trace.header.stream for request in requests}) == len(requests) == 18
        assert Counter(request.case_id for request in requests) == dict.fromkeys({r.case_id for r in requests}, 3)


@pytest.fixture(scope="module")
def three_looks(tmp_path_factory):
    """A run of three looks: what they judged, and the number of requests in each reading of the candidate."""
    folder, judged, reads = tmp_path_factory.mktemp("looks"), [], []
    add, load = Store.add_check, Store.load_arm

    def recording(store, run_name, check):
        judged.append((check.name, check.result.verdict, check.result.details["look"]["number"]))
        add(store, run_name, check)

    def counting(store, run_name, name):
        record = load(store, run_name, name)
        reads.extend([len(record.requests)] if name == "chain" else [])
        return record

    with Store.open(str(folder / "audit.db"), create=True) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "add_check", recording)
        patch.setattr(Store, "load_arm", counting)
        outcome = decide(folder, store, 4 * ROUND, margin=0.001, more=", accounting: {}")
        yield SimpleNamespace(
            looks=looks_of(store, outcome), checks=store.checks(outcome.run), judged=judged, reads=reads
        )


def test_looks_read_at_most_twice_the_final_evidence(three_looks):
    assert [each.repetitions for each in three_looks.looks] == [1, 2, 4]
    assert three_looks.reads == [6, 12, 24]
    assert sum(three_looks.reads) <= 2 * three_looks.reads[-1]


def test_a_check_that_a_look_decided_is_not_judged_again(three_looks):
    undecided = [(check, look) for check, verdict, look in three_looks.judged if verdict is Verdict.INCONCLUSIVE]
    assert [look for check, look in undecided if check == "acceptance_theory"] == [1, 2, 3]
    # a check is judged at the first look, and again only while it is inconclusive
    again = {(check, look) for check, _, look in three_looks.judged if look > 1}
    assert again == {(check, look + 1) for check, look in undecided if look < 3}
    accounting = next(each for each in three_looks.checks if each.check == "accounting")
    assert accounting.verdict is Verdict.CERTIFIED
    assert accounting.details["look"]["number"] < 3


class ShortAnswers:
    """A store, and requests that emit a third of what they may; stops after a number of new requests."""

    def __init__(self):
        self.stored, self.stop_after = set(), None

    def finished(self, _):
        return frozenset(self.stored)

    def load_run(self, _):
        counts = SimpleNamespace(output=10 * len(self.stored), directed_output=0)
        return SimpleNamespace(arms=[SimpleNamespace(kind=ArmKind.CANDIDATE, counts=counts)])

    def generate(self, arm):
        for key in arm.requests.keys() - self.stored:
            if self.stop_after == 0:
                raise KeyboardInterrupt
            self.stop_after = None if self.stop_after is None else self.stop_after - 1
            self.stored.add(key)


def rounds_of_short_answers(folder, limit):
    """Rounds after four repetitions, which emitted a third of 4 * ROUND."""
    prepared, answers = prepare(load_suite(suite_file(folder))), ShortAnswers()
    for arm in prepared.arms:
        answers.generate(for_round(prepared.suite, arm, range(4)))
    return answers, Rounds(prepared, answers, "run", answers.generate, RunStopRule(limit), print)


@pytest.mark.parametrize(("limit", "repetitions"), [(4 * ROUND, 8), (3 * ROUND, 7), (2 * ROUND, 5), (20 * ROUND, 8)])
def test_a_round_uses_the_room_that_short_answers_leave(tmp_path, limit, repetitions):
    answers, rounds = rounds_of_short_answers(tmp_path, limit)
    assert repeat_suite(rounds, rounds.prepared.arms, 4) == repetitions
    assert len(answers.stored) == repetitions * ROUND // 30
    tokens = 10 * len(answers.stored)
    # the round is complete, or one more repetition might pass the limit
    assert repetitions == 8 or limit - ROUND < tokens <= limit


@pytest.mark.parametrize("stop_after", [0, 1, 7, 13, 20, 35])
def test_an_interrupted_round_gets_as_many_repetitions(tmp_path, stop_after):
    answers, rounds = rounds_of_short_answers(tmp_path, 3 * ROUND)
    answers.stop_after = stop_after
    with pytest.raises(KeyboardInterrupt):
        repeat_suite(rounds, rounds.prepared.arms, 4)
    answers.stop_after = None
    assert repeat_suite(rounds, rounds.prepared.arms, 4) == 7
    assert len(answers.stored) == 7 * ROUND // 30


@pytest.mark.slow
def test_a_margin_out_of_reach_ends_inconclusive_at_the_limit(tmp_path, store):
    outcome = decide(tmp_path, store, 4 * ROUND + ROUND // 2, margin=0.001)
    last = ended(store, outcome)
    assert (outcome.exit_code, last.look, last.tokens, last.undecided) == (3, 3, 4 * ROUND, ("chain",))
    assert f"would pass the limit of {4 * ROUND + ROUND // 2}" in last.stopped


@pytest.mark.medium
@pytest.mark.parametrize("seed", fast_first(range(5)))
def test_a_broken_engine_stops_early(tmp_path, store, seed):
    outcome = decide(tmp_path, store, 20 * ROUND, margin=0.001, seed=seed, fault="sqrt_acceptance")
    last = ended(store, outcome)
    assert (outcome.exit_code, last.stopped) == (1, "a claim is broken")
    assert last.look <= 5


@pytest.mark.slow
def test_clean_engines_raise_no_more_alarms_than_alpha_under_optional_stopping(tmp_path, store):
    runs, alpha = 15, 0.2
    codes = [decide(tmp_path, store, 5 * ROUND, margin=0.001, alpha=alpha, seed=s).exit_code for s in range(runs)]
    assert set(codes) <= {1, 3}
    # more alarms than this happen with probability 0.001 at a rate of exactly alpha
    assert codes.count(1) <= binom.isf(0.001, runs, alpha)


@pytest.mark.medium
def test_greedy_arms_run_once_and_cannot_hold_up_the_end(tmp_path, store):
    path = suite_file(tmp_path)
    text = path.read_text().replace("temperature: 1", "temperature: 0")
    checks = "acceptance_theory: {margin: 0.1, alpha: 0.001}"
    path.write_text(text.replace(checks, "greedy_equality: {min_tokens: 10000}"))
    outcome = run(prepare(load_suite(path)), store, Quiet(), RunStopRule(100 * ROUND))
    last = ended(store, outcome)
    assert (outcome.exit_code, last.look) == (3, 1)
    assert "would only copy" in last.stopped


@pytest.mark.slow
def test_decided_arms_rest_while_others_go_on(tmp_path, store):
    path = suite_file(tmp_path, margin=0.05)
    text = path.read_text()
    arm = text[text.index("  - name: chain") :].replace("name: chain", "name: easy").replace("0.05", "0.9")
    path.write_text(text + arm)
    outcome = run(prepare(load_suite(path)), store, Quiet(), RunStopRule(8 * ROUND))
    counts = {each.name: each.counts.requests for each in store.load_run(outcome.run).arms}
    assert counts["easy"] == 6
    assert counts["chain"] > 6
    looks = interim_results(store.load_run(outcome.run).events)
    assert {each.undecided for each in looks if each.stopped is None} == {("chain",)}


@pytest.mark.slow
def test_companions_run_in_every_round(tmp_path, store):
    outcome = decide(tmp_path, store, 30 * ROUND, margin=0.1, more=", seed: {}")
    record, last = store.load_run(outcome.run), ended(store, outcome)
    assert last.look > 1
    repeat = next(each for each in record.arms if each.kind is ArmKind.REPEAT)
    assert repeat.counts.requests == 6 * last.repetitions


@pytest.mark.parametrize("stop_after", fast_first([12, 1, 9, 17, 25]))
@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(tmp_path, store, stop_after):
    suite, rule = load_suite(suite_file(tmp_path, margin=0.1)), RunStopRule(100 * ROUND)
    whole = run(prepare(suite), store, Quiet(), rule)
    with pytest.raises(Interrupted) as stopped:
        run(prepare(suite), store, StopsAfter(stop_after), rule)
    outcome = resume(prepare(suite), store, stopped.value.run, Quiet())
    assert outcome.exit_code == whole.exit_code
    one, other = (interim_results(store.load_run(each.run).events) for each in (whole, outcome))
    assert one == other
    first, second = (
        {each.key: each.tokens for each in store.load_arm(run_.run, "chain").requests} for run_ in (whole, outcome)
    )
    assert first == second


@pytest.mark.medium
def test_a_limit_below_one_round_is_refused(tmp_path, store):
    with pytest.raises(UserError, match=rf"one round emits up to {ROUND} tokens .* more than --max-tokens 100; write"):
        decide(tmp_path, store, 100)
    assert store.list_runs(5) == ()


@pytest.mark.medium
def test_the_command_says_after_how_many_tokens_it_was_decided(tmp_path):
    path, url = str(suite_file(tmp_path, margin=0.1)), str(tmp_path / "own.db")
    options = ["--store", url, "--results", str(tmp_path / "r.json")]
    for wrong in (["--until", "decided"], ["--max-tokens", "9000"], ["--until", "decided", "--max-tokens", "9"]):
        refused = invoke("run", path, *wrong, *options)
        assert refused.exit_code == 2
        assert len(refused.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "own.db").exists()
    done = invoke("run", path, "--until", "decided", "--max-tokens", str(100 * ROUND), *options)
    assert done.exit_code == 0, done.stderr
    assert "PASS" in done.stdout
    assert "\ndecided after " in done.stdout
    assert " tokens in " in done.stdout
    shown = invoke("show", "latest", "--store", url)
    assert "looks         decided after " in shown.stdout


@pytest.mark.medium
def test_the_command_prints_what_is_left_and_never_full_certainty(tmp_path):
    # the level of the first look is within rounding of 1
    path = str(suite_file(tmp_path, margin=0.001, alpha="0.001, confidence: 0.9999999"))
    store = ["--store", str(tmp_path / "own.db")]
    done = invoke("run", path, "-v", "--until", "decided", "--max-tokens", str(ROUND), *store)
    assert done.exit_code == 3, done.stderr
    assert "\nnot decided after 360 tokens in 1 look" in done.stdout
    assert "\nleft in chain: acceptance_theory (bound 0." in done.stdout
    assert ", margin 0.001)" in done.stdout
    assert "(99.9999939 %)" in done.stdout
    assert "100 %" not in done.stdout
    assert "left in chain: " in invoke("show", "latest", *store).stdout
