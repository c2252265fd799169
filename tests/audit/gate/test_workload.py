from __future__ import annotations

from dataclasses import replace

import pytest

from audit.evidence.records import ArmKind, ArmRecord, Level, RequestRecord
from audit.gate.decide import decide
from audit.gate.decision import Decision
from audit.gate.facts import RunFacts, workload_of
from audit.gate.policy import Policy, load_policy
from audit.gate.policy_parts import Floors, LeastWorkload, PolicyParts
from audit.gate.rules.workload import SERVED_BY
from audit.gate.serving_profile import SampledRange, SampledSetting, ServingProfile, setting_of
from audit.store import StoredDecision
from engine.core.types import SamplingParams
from engine.record.effective import Effective
from engine.record.trace import decode
from tests.audit.gate.runs import NOW, asked, check, facts
from tests.audit.store.build import generation


def serving(*words: str, **sampled: object) -> PolicyParts:
    return PolicyParts(serving=ServingProfile(words, SampledRange(**sampled)))


def texts(parts: PolicyParts, base: RunFacts | None = None, serves: tuple[str, ...] | None = None) -> list[str]:
    policy: Policy = replace(load_policy("standard"), coverage={}, parts=parts)
    asked = None if serves is None else ServingProfile(serves)
    outcome = decide(base or facts(), policy, (), NOW, no_subject=True, serves=asked)
    return [str(reason) for reason in outcome.reasons if reason.answer is not Decision.ALLOW]


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, True),
        ({"top_k": 10}, True),
        ({"top_k": 9}, False),
        ({"top_p": 0.5}, True),
        ({"top_p": 0.49}, False),
        ({"min_p": 0.2}, True),
        ({"min_p": 0.21}, False),
        ({"logit_bias": ((3, 100.0), (4, 100.0))}, False),
        ({"bad_words": ((3,),), "presence_penalty": 1.0}, True),
    ],
)
def test_what_shows_free_sampling(changes, free):
    assert setting_of(SamplingParams(temperature=1.0, **changes)).free is free


@pytest.mark.medium
@pytest.mark.parametrize(
    ("least", "says"),
    [
        ({"tokens": 601}, "600 emitted tokens, 601 are required"),
        ({"requests": 9}, "8 answered requests, 9 are required"),
        ({"prompts": 9}, "8 different prompts, 9 are required"),
        ({"domains": 2}, "1 domains, 2 are required"),
        ({"context": 101}, "100 tokens of the longest prompt with its answer, 101 are required"),
        ({"verified_drafts": 901}, "900 drafted tokens verified, 901 are required"),
        ({"batch_size": 2}, "requests decoded at once are unknown, 2 are required"),
    ],
)
def test_each_count_is_decisive(least, says):
    both = [f"cannot_decide: workload: arm {arm}: {says}" for arm in ("greedy", "sampled")]
    assert texts(PolicyParts(workload=LeastWorkload(**least))) == both
    if "unknown" not in says:
        ((name, number),) = least.items()
        assert texts(PolicyParts(workload=LeastWorkload(**{name: number - 1}))) == []


@pytest.mark.parametrize(
    ("workload", "wanted", "says"),
    [
        (asked(1e-6), {}, "no candidate arm sampled freely: temperature 0.5 or more"),
        (asked(0.49), {}, "no candidate arm sampled freely: temperature 0.5 or more"),
        (asked(1.0, top_k=2), {}, "no candidate arm sampled freely"),
        (asked(1.0, logit_bias=True), {}, "no candidate arm sampled freely"),
        (asked(0.05), {"lowest": 0.05}, "no candidate arm sampled freely: temperature 0.1 or more"),
        (asked(0.8, choices=3), {}, "p left a choice for 3 sampled tokens, 20 are required"),
        (asked(0.8), {"lowest": 0.5}, "the lowest temperature of the run is 0.8"),
        (asked(0.8), {"highest": 1.0}, "the highest temperature of the run is 0.8"),
        (
            asked(0.8, top_p=0.9),
            {"settings": (SampledSetting(0.8, top_p=0.95),)},
            "no candidate arm sampled at temperature 0.8, top_p 0.95",
        ),
        (
            asked(0.8, 19, top_k=2),
            {"settings": (SampledSetting(0.8, top_k=2),)},
            "p left a choice for 19 sampled tokens, 20 are required; sampled at temperature 0.8, top_k 2",
        ),
    ],
)
def test_what_shows_nothing_about_a_deployment_that_samples(workload, wanted, says):
    base = replace(facts(), workloads={**facts().workloads, "sampled": workload})
    (reason,) = texts(serving("sampled", **wanted), base)
    assert reason.startswith(f"cannot_decide: serves sampled: {says}")


def test_what_shows_it():
    assert texts(serving("greedy", "sampled", lowest=0.8, highest=0.8)) == []
    for workload, settings in (
        (asked(0.8, choices=None), ()),
        (asked(0.2, top_k=2, logit_bias=True), (SampledSetting(0.2, top_k=2, logit_bias=True),)),
    ):
        base = replace(facts(), workloads={**facts().workloads, "sampled": workload})
        assert texts(serving("sampled", settings=settings), base) == []


def test_the_command_line_narrows_what_the_policy_says_and_the_decision_states_it():
    base = replace(facts(), workloads={"greedy": asked(0.0), "sampled": asked(1e-6)})
    policy = replace(load_policy("standard"), coverage={}, parts=serving("greedy", "sampled"))
    outcome = decide(base, policy, (), NOW, no_subject=True, serves=ServingProfile(("greedy",)))
    assert outcome.answer is Decision.ALLOW
    stated = StoredDecision("r", "", {}, "allow", tuple(map(str, outcome.reasons)), "ci", NOW)
    assert "allow: serves: greedy alone, of the policy's greedy, sampled" in stated.reasons
    assert stated.serves == {"greedy"}
    whole = decide(facts(), policy, (), NOW, no_subject=True, serves=ServingProfile(("sampled", "greedy")))
    assert not any("serves" in str(reason) for reason in whole.reasons)
    beyond, lacking = texts(policy.parts, base, ("tools",))
    assert (
        beyond
        == "cannot_decide: serves tools: the policy lets a deployment serve greedy, sampled; use one that lists it"
    )
    assert "no candidate arm with such requests has tool_call_equality certified" in lacking
    assert texts(PolicyParts(), base, ("tools",)) == [lacking]


def test_floors_block():
    assert texts(PolicyParts(floors=Floors(acceptance=0.3, tokens_per_forward=2.0))) == []
    low = texts(PolicyParts(floors=Floors(acceptance=0.4)))
    assert low[0] == "block: floors: arm greedy: acceptance is 0.333, 0.4 is required"
    assert "tokens_per_forward is 2, 2.5 is required" in texts(PolicyParts(floors=Floors(tokens_per_forward=2.5)))[0]


def answered(features: frozenset[str], *certified: str) -> RunFacts:
    """The run whose sampled arm answered such requests, with these checks certified."""
    base = facts()
    checks = tuple(check("sampled", name) for name in certified)
    workloads = {**base.workloads, "sampled": replace(asked(0.8), features=features)}
    return replace(base, checks=checks, workloads=workloads)


@pytest.mark.parametrize(
    ("word", "certified"), [("streaming", "surface_parity"), ("adapters", "law"), ("logprobs", "replay")]
)
def test_a_kind_is_shown_by_its_requests_and_a_certified_check(word, certified):
    lacking = f"cannot_decide: serves {word}: {LACKS[word]}"
    assert lacking not in texts(serving(word), answered(frozenset({word}), certified))
    assert (lacking in texts(serving(word), answered(frozenset(), certified))) is (word != "logprobs")
    assert lacking in texts(serving(word), answered(frozenset({word})))


LACKS = {
    word: f"no candidate arm with such requests has {' or '.join(SERVED_BY[word])} certified"
    for word in ("streaming", "adapters", "logprobs")
}


@pytest.mark.parametrize(
    ("effective", "told", "features"),
    [
        ({"stream": "streamed", "logprobs": 5}, {}, {"streaming", "logprobs"}),
        ({"stream": "whole", "logprobs": 0}, {"tools": ["look"]}, {"tools"}),
        ({}, {"stream": {"filters": ["digits"]}}, {"streaming", "filters"}),
        ({}, {"request": {"effective": {"adapter": "one", "logprobs": 3}}}, {"adapters", "logprobs"}),
        ({}, {"request": {"effective": {"adapter": None}}}, set()),
    ],
)
def test_the_record_states_the_kinds_of_an_arm_s_requests(effective, told, features):
    made = generation(((4, 4), (2, 0)), facts=told)
    trace, tokens, ended = decode(made.trace), tuple(made.tokens), made.finish_reason
    request = RequestRecord("r0", "case-a", 0, "chat", trace, tokens, "text", ended, latency_us=1, intact=True)
    arm = ArmRecord("arm", ArmKind.CANDIDATE, Level.L4, Effective.from_json(effective), (request,))
    assert workload_of(arm).features == features
