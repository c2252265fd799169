from __future__ import annotations

from dataclasses import replace

import pytest

from audit.gate.decide import decide
from audit.gate.decision import Decision
from audit.gate.facts import RunFacts, is_sampled
from audit.gate.policy import Policy, load_policy
from audit.gate.policy_parts import Floors, LeastWorkload, PolicyParts, SampledRange
from audit.store import StoredDecision
from engine.core.types import SamplingParams
from tests.audit.gate.runs import NOW, asked, facts


def texts(parts: PolicyParts, base: RunFacts | None = None, serves: tuple[str, ...] | None = None) -> list[str]:
    policy: Policy = replace(load_policy("standard"), coverage={}, parts=parts)
    outcome = decide(base or facts(), policy, (), NOW, no_subject=True, serves=serves)
    return [str(reason) for reason in outcome.reasons if reason.answer is not Decision.ALLOW]


@pytest.mark.parametrize(
    ("changes", "sampled"),
    [
        ({"temperature": 0.8}, True),
        ({"temperature": 0.1}, True),
        ({"temperature": 0.0}, False),
        ({"temperature": 1e-6}, False),
        ({"temperature": 1.0, "top_k": 1}, False),
        ({"temperature": 1.0, "top_k": 2}, True),
        ({"temperature": 1.0, "top_p": 1e-9}, False),
        ({"temperature": 1.0, "min_p": 0.999}, False),
    ],
)
def test_what_leaves_a_choice(changes, sampled):
    assert is_sampled(SamplingParams(**changes)) is sampled


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
        (asked(1e-6), SampledRange(), "no candidate arm sampled"),
        (asked(0.8, choices=3), SampledRange(), "p left a choice for 3 sampled tokens at most, 20 are required"),
        (asked(0.8), SampledRange(lowest=0.5), "the lowest temperature of the run is 0.8"),
        (asked(0.8), SampledRange(highest=1.0), "the highest temperature of the run is 0.8"),
    ],
)
def test_what_shows_nothing_about_a_deployment_that_samples(workload, wanted, says):
    base = replace(facts(), workloads={**facts().workloads, "sampled": workload})
    (reason,) = texts(PolicyParts(serves=("sampled",), sampled=wanted), base)
    assert reason.startswith(f"cannot_decide: serves sampled: {says}")


def test_what_shows_it():
    reach = SampledRange(lowest=0.8, highest=0.8)
    assert texts(PolicyParts(serves=("greedy", "sampled"), sampled=reach)) == []
    without_p = replace(facts(), workloads={**facts().workloads, "sampled": asked(0.8, choices=None)})
    assert texts(PolicyParts(serves=("sampled",)), without_p) == []


def test_the_command_line_narrows_what_the_policy_says_and_the_decision_states_it():
    base = replace(facts(), workloads={"greedy": asked(0.0), "sampled": asked(1e-6)})
    policy = replace(load_policy("standard"), coverage={}, parts=PolicyParts(serves=("greedy", "sampled")))
    outcome = decide(base, policy, (), NOW, no_subject=True, serves=("greedy",))
    assert outcome.answer is Decision.ALLOW
    stated = StoredDecision("r", "", {}, "allow", tuple(map(str, outcome.reasons)), "ci", NOW)
    assert "allow: serves: greedy alone, of the policy's greedy, sampled" in stated.reasons
    assert stated.serves == {"greedy"}
    whole = decide(facts(), policy, (), NOW, no_subject=True, serves=("sampled", "greedy"))
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
