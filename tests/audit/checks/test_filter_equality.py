"""Check filter_equality: the same decisions as without speculation, and as those of a fresh filter."""

from dataclasses import replace

import pytest

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.evidence import streams
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine.record.effective import Effective
from engine.stream import fresh_reading
from tests.audit.checks.streamed_arms import SCENARIOS, decided, evidence, recorded, stream, with_facts, with_stream

CHECK = load("filter_equality")
FAULTS = ["filter_reads_drafts", "filter_not_rolled_back", "filter_per_step"]


def judge(found, **params):
    return evaluate(CHECK, found, params)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["gumbel", "chain"])
def test_clean_decisions_are_certified(name):
    result = judge(evidence(name))
    assert (result.verdict, result.n) == (Verdict.CERTIFIED, 8)
    assert result.details["judged_again"] == 8
    assert result.details["with_baseline"] == (8 if name == "gumbel" else 0)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["gumbel", "chain"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_filter_that_reads_another_text_is_a_fault(name, fault):
    result = judge(evidence(name, fault))
    assert result.verdict is Verdict.FAULT
    assert result.statistic > 0


@pytest.mark.medium
def test_an_arm_without_filters_has_nothing_to_compare():
    assert (judge(evidence("stopped")).verdict, judge(evidence("plain")).verdict) == (Verdict.NOT_RUN,) * 2


@pytest.mark.medium
@pytest.mark.parametrize(
    ("key", "value"), [("category", "other"), ("start", 0), ("action", "refuse"), ("token", 40), ("filter", 1)]
)
def test_every_part_of_a_decision_counts(key, value):
    clean = evidence("gumbel")
    request = decided(clean)
    first, *rest = stream(clean, request)["decisions"]
    assert judge(with_stream(clean, request, decisions=[{**first, key: value}, *rest])).verdict is Verdict.FAULT


def test_a_decision_too_many_or_too_few_is_a_fault_without_a_baseline_too():
    clean = replace(evidence("chain"), baseline=None)
    request = decided(clean)
    decisions = stream(clean, request)["decisions"]
    for other in (decisions[1:], [*decisions, {**decisions[0], "start": 0, "end": 1}]):
        result = judge(with_stream(clean, request, decisions=other))
        assert (result.verdict, result.statistic) == (Verdict.FAULT, 1.0)
        assert "a fresh filter" in result.summary


def test_the_order_of_decisions_and_the_text_held_at_the_end_are_made_again():
    clean = replace(evidence("chain"), baseline=None)
    request = decided(clean)
    kept = stream(clean, request)
    turned = judge(with_stream(clean, request, decisions=kept["decisions"][::-1]))
    assert turned.verdict is Verdict.FAULT
    assert "another order" in turned.findings[0].message
    longer = judge(with_stream(clean, request, held=kept["held"] + 1))
    assert longer.verdict is Verdict.FAULT
    assert "fresh ones" in longer.findings[0].message


def test_another_version_is_a_fault():
    clean = evidence("gumbel")
    listed = stream(clean)["filters"]
    result = judge(with_stream(clean, filters=[{**listed[0], "version": "0"}, *listed[1:]]))
    assert (result.verdict, result.statistic) == (Verdict.FAULT, 1.0)


def other_rules(arm, categories):
    """The arm as one whose first filter has other rules."""
    document = arm.effective.to_json()
    first, *rest = document["stream"]["filters"]
    filters = [{**first, "ruleset": "0" * 64, "rules": {"categories": categories}}, *rest]
    return replace(arm, effective=Effective.from_json({**document, "stream": {"filters": filters}}))


def test_other_rules_than_the_baseline_s_are_a_fault():
    clean = evidence("gumbel")
    assert clean.baseline is not None
    result = judge(replace(clean, baseline=other_rules(clean.baseline, {"x": ["y"]})))
    assert result.verdict is Verdict.FAULT
    assert result.findings[0].request == "the arm"


def test_few_decisions_and_silent_requests_leave_the_arm_undecided():
    clean = evidence("gumbel")
    few = judge(clean, min_decisions=10_000)
    assert (few.verdict, few.statistic) == (Verdict.INCONCLUSIVE, 0.0)
    assert "10000 are needed" in few.summary
    silent = judge(with_stream(clean, decisions=None))
    assert (silent.verdict, silent.details["not_compared"]) == (Verdict.INCONCLUSIVE, 1)


def test_a_model_is_not_loaded_and_the_baseline_decides():
    clean = evidence("gumbel")

    def models(arm):
        document = arm.effective.to_json()
        listed = document["stream"]["filters"]
        filters = [{**listed[0], "component": "classifier"}, *listed[1:]]
        return replace(arm, effective=Effective.from_json({**document, "stream": {"filters": filters}}))

    found = replace(clean, candidate=models(clean.candidate), baseline=models(clean.baseline))
    result = judge(found)
    assert result.details["not_judged_again"] == "the rules of classifier are a model"
    assert result.details["with_baseline"] == 8


@pytest.fixture
def models(monkeypatch):
    """Patterns count as models: the engine reads again, and no check does."""
    for module in (fresh_reading, streams):
        monkeypatch.setattr(module, "MODELS", ("patterns",))

    def sampled(fault=None):
        return Evidence(recorded(SCENARIOS["chain"], fault, False), None)

    return sampled


@pytest.mark.medium
def test_a_model_s_decisions_in_a_sampled_arm_are_those_of_the_engine_s_second_reading(models):
    clean = models()
    result = judge(clean)
    assert (result.verdict, result.details["judged_again"]) == (Verdict.CERTIFIED, 8)
    request = decided(clean)
    decisions = stream(clean, request)["decisions"]
    assert judge(with_stream(clean, request, decisions=decisions[1:])).verdict is Verdict.FAULT
    older = {key: value for key, value in stream(clean, request).items() if key != "again"}
    silent = judge(with_facts(clean, lambda facts: {**facts, "stream": older}, request))
    assert (silent.verdict, silent.details["not_compared"]) == (Verdict.INCONCLUSIVE, 1)
    assert silent.details["not_judged_again"] == "the rules of patterns are a model"


@pytest.mark.medium
@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_reads_another_text_is_a_fault_without_a_baseline(models, fault):
    assert judge(models(fault)).verdict is Verdict.FAULT


@pytest.mark.medium
def test_a_chunk_that_waits_longer_than_its_filters_is_a_fault():
    clean = evidence("chain")
    chunks = stream(clean)["chunks"]
    (_, first), (tokens, second) = chunks[:2]
    result = judge(with_stream(clean, chunks=[[tokens, first + second], *chunks[2:]]))
    assert (result.verdict, result.statistic) == (Verdict.FAULT, 1.0)
    assert result.findings[0].message.startswith("chunk 0 is ")
