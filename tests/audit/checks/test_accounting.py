from dataclasses import replace

import numpy as np
import pytest

from audit.checks.accounting.check import CHECK
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine.core.types import FinishReason, Protocol, RecordLevel, Role
from engine.record.effective import Effective
from tests.audit.checks.engine_arms import SAMPLED as ENGINE_SAMPLED
from tests.audit.checks.engine_arms import engine_arm, plan
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world
from tests.support.tiers import fast_first


def judge(candidate: ArmRecord):
    return evaluate(CHECK, Evidence(candidate), {})


def with_header(candidate, request=1, **changes):
    header = candidate.requests[request].trace.header
    return changed(candidate, request, header=replace(header, **changes))


def with_sampling(candidate, request=1, **changes):
    sampling = candidate.requests[request].trace.header.sampling
    return with_header(candidate, request, sampling=replace(sampling, **changes))


def with_request(candidate, request, **changes):
    new = replace(candidate.requests[request], **changes)
    return replace(candidate, requests=(*candidate.requests[:request], new, *candidate.requests[request + 1 :]))


@pytest.fixture(scope="module")
def clean():
    return arm(world(4), Setup(), 3)


CONSTRAINED = replace(
    ENGINE_SAMPLED,
    temperature=0.7,
    top_p=0.9,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    min_tokens=10,
    bad_words=((3,), (7, 8)),
    stop=("ab", "e "),
    stop_token_ids=(9,),
)
SAMPLINGS = {
    "sampled": ENGINE_SAMPLED,
    "greedy": replace(ENGINE_SAMPLED, temperature=0.0),
    "constrained": CONSTRAINED,
    "truncated": replace(ENGINE_SAMPLED, top_k=5, min_p=0.03),
}


@pytest.mark.medium
@pytest.mark.parametrize("sampling", fast_first(SAMPLINGS.values()), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("protocol", list(Protocol))
def test_the_engine_never_contradicts_itself(protocol, sampling):
    """Every rule, lossy ones included, at two record levels: a correct arm cannot be a fault."""
    for level in (RecordLevel.TOPK, RecordLevel.FULL):
        result = judge(engine_arm(plan(protocol, level=level), replace(sampling, max_new_tokens=32), 6))
        assert result.verdict is Verdict.CERTIFIED, result.findings


@pytest.mark.medium
@pytest.mark.parametrize("level", list(RecordLevel))
@pytest.mark.parametrize("proposer", [None, "ngram", "suffix"])
def test_every_record_level_is_judged(proposer, level):
    protocol = Protocol.GUMBEL if proposer is None else Protocol.CHAIN
    result = judge(engine_arm(plan(protocol, proposer, level=level), requests=3))
    assert result.verdict is Verdict.CERTIFIED, result.findings
    assert ("not recorded" in result.summary) is (level is RecordLevel.TOKENS)


def test_the_bound_is_on_requests(clean):
    result = judge(clean)
    assert (result.n, result.effect) == (3, 0.0)
    assert result.bound == pytest.approx(1 - 0.01 ** (1 / 3))
    assert result.detectable == pytest.approx(1 - 0.1 ** (1 / 3))


def bonus_as_accepted(t):
    return {"role": put(t.role, int(np.flatnonzero(t.role == Role.BONUS)[0]), Role.ACCEPTED)}


COLUMNS = {
    "gap in positions": (lambda t: {"position": put(t.position, 2, int(t.position[2]) + 1)}, "begins at position"),
    "a column too short": (lambda t: {"token": t.token[:-1]}, "entries"),
    "a bonus called accepted": (bonus_as_accepted, "recorded as accepted but was not drafted"),
    "p above one": (lambda t: {"p": put(t.p, 4, 1.5)}, "p is 1.5"),
    "p of zero": (lambda t: {"p": put(t.p, 4, 0.0)}, "outside the target's support"),
    "p of another row": (lambda t: {"p": np.roll(t.p, 1)}, "p recorded"),
    "p of a draft that is none": (lambda t: {"examined_p": put(t.examined_p, 0, np.nan)}, "p of drafted token"),
    "log-probabilities of zero": (lambda t: {"logprob": np.zeros_like(t.logprob)}, "more than a lead"),
    "log-probabilities shifted by one": (lambda t: {"logprob": np.roll(t.logprob, 1)}, "log-probability recorded"),
    "a log-probability that is none": (lambda t: {"logprob": put(t.logprob, 3, np.nan)}, "log-probability nan"),
    "margin below zero": (lambda t: {"margin": put(t.margin, 3, -1.0)}, "margin -1"),
    "a row without numbers": (lambda t: {"logits": np.full_like(t.logits, np.nan)}, "gives no distribution"),
}


@pytest.mark.parametrize(("change", "message"), COLUMNS.values(), ids=COLUMNS.keys())
def test_a_contradiction_is_named(clean, change, message):
    result = judge(changed(clean, 1, **change(clean.requests[1].trace)))
    assert result.verdict is Verdict.FAULT
    assert any(message in each.message for each in result.findings), result.findings
    assert {each.request for each in result.findings} == {"case-1"}


def test_log_probabilities_of_zero_show_without_rows():
    """What llama.cpp#27972 gave: every log-probability 0."""
    scalars = arm(world(4), Setup(level=RecordLevel.SCALARS), 2)
    zeros = np.zeros_like(scalars.requests[1].trace.logprob)
    result = judge(changed(scalars, 1, logprob=zeros))
    assert result.details["contradictions"] == len(zeros)
    low = replace(changed(scalars, 1, logprob=zeros), level=Level.L0)
    assert judge(low).verdict is Verdict.CERTIFIED, "text alone does not show them"


def test_more_drafts_than_gamma(clean):
    assert judge(replace(clean, effective=Effective.from_json({"gamma": 4}))).verdict is Verdict.CERTIFIED
    result = judge(replace(clean, effective=Effective.from_json({"gamma": 3})))
    assert "4 tokens were drafted, gamma is 3" in result.findings[0].message


TOLD = {
    "forbidden word": (lambda a: with_sampling(a, bad_words=(a.requests[1].tokens[3:5],)), "forbidden sequence"),
    "an end too early": (
        lambda a: with_sampling(a, min_tokens=8, stop_token_ids=(a.requests[1].tokens[2],)),
        "token 3 is the end",
    ),
    "tokens after the end": (lambda a: with_header(a, eos_ids=(a.requests[1].tokens[5],)), "follow the end token"),
    "too long": (lambda a: with_sampling(a, max_new_tokens=20), "max_new_tokens is 20"),
    "too short": (lambda a: with_sampling(a, max_new_tokens=99), "finish reason length after 64 of 99"),
    "stop without reason": (lambda a: with_header(a, finish_reason=FinishReason.STOP), "finish reason"),
    "tokens of another request": (lambda a: with_request(a, 1, tokens=a.requests[0].tokens), "not those of its record"),
    "a case twice": (lambda a: with_request(a, 1, case_id="case-0"), "more than once"),
}


@pytest.mark.parametrize(("change", "message"), TOLD.values(), ids=TOLD.keys())
@pytest.mark.parametrize("level", [RecordLevel.TOKENS, RecordLevel.FULL])
def test_what_tokens_tell_shows_at_every_level(level, change, message):
    broken = change(arm(world(4), Setup(level=level), 3))
    result = judge(replace(broken, level=Level.L0) if level is RecordLevel.TOKENS else broken)
    assert result.verdict is Verdict.FAULT
    assert any(message in each.message for each in result.findings), result.findings


def test_a_stop_string_in_the_text(clean):
    told = with_request(with_sampling(clean, stop=("cd",)), 1, text="abcde")
    assert any("stop string 'cd'" in each.message for each in judge(told).findings)
    early = with_request(with_sampling(clean, stop=("cd",), min_tokens=1), 1, text="abcde")
    assert judge(early).verdict is Verdict.CERTIFIED


TRUNCATIONS = {
    "top-k": ({"top_k": 3}, "outside the 3 largest"),
    "top-p": ({"top_p": 0.5}, "outside the top-p set"),
    "min-p": ({"min_p": 0.5}, "below min_p"),
}


@pytest.mark.medium
@pytest.mark.parametrize(("sampling", "message"), TRUNCATIONS.values(), ids=TRUNCATIONS.keys())
def test_truncation_that_never_happened_shows_in_the_largest_scores(sampling, message):
    """An engine that says that it truncates and draws from all tokens."""
    clean = arm(world(4), Setup(level=RecordLevel.TOPK, sampling=replace(SAMPLED, **sampling)), 3)
    assert judge(clean).verdict is Verdict.CERTIFIED
    free = arm(world(4), Setup(level=RecordLevel.TOPK), 3)
    result = judge(with_sampling(free, **sampling))
    assert any(message in each.message for each in result.findings)


def test_largest_scores_that_are_not_sorted_and_a_p_below_its_row():
    top = arm(world(4), Setup(level=RecordLevel.TOPK), 2)
    trace = top.requests[1].trace
    mixed = judge(changed(top, 1, top_score=trace.top_score[:, ::-1].copy()))
    assert any("contradict each other" in each.message for each in mixed.findings)
    low = judge(changed(top, 1, p=trace.p / 2))
    assert any("before truncation" in each.message for each in low.findings)


@pytest.mark.parametrize("level", [RecordLevel.SCALARS, RecordLevel.TOPK, RecordLevel.FULL])
def test_unverified_drafts_at_temperature_zero_are_outside_the_support(level):
    setup = Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY, level=level)
    assert judge(arm(world(4), setup, 3)).verdict is Verdict.CERTIFIED
    result = judge(arm(world(4), replace(setup, fault="unverified"), 3))
    assert any("support" in each.message or "argmax" in each.message for each in result.findings)


def test_a_lossy_rule_has_no_support_to_keep(clean):
    lossy = with_header(clean, lossless=False)
    p = put(clean.requests[1].trace.p, 4, 0.0)
    (finding,) = judge(changed(lossy, 1, p=p)).findings
    assert "p recorded 0" in finding.message


@pytest.mark.parametrize("fault", ["argmax_draft", "from_p", "sqrt", "stale_q", "lenient", "reuse"])
def test_faults_of_chance_are_not_its_business(fault):
    assert judge(arm(world(4), Setup(fault=fault), 4)).verdict is Verdict.CERTIFIED


def test_an_arm_without_requests_decides_nothing(clean):
    assert judge(replace(clean, requests=())).verdict is Verdict.INCONCLUSIVE
