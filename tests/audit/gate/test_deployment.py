"""Rule `deployed`: a run in another shape than the deployment's decides nothing about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audit.errors import UserError
from audit.evidence.coverage.scope import SCOPE, ArmScope
from audit.evidence.verdicts import Verdict
from audit.gate.decide import decide
from audit.gate.decision import Decision
from audit.gate.facts import RunFacts
from audit.gate.policy import load_policy
from audit.gate.policy_parts import PolicyParts
from audit.gate.serving_profile import DeployedScope, ServingProfile
from tests.audit.gate.runs import NOW, facts

SEEN = ArmScope(1, 8, 5, "chain", "ordered", "cuda:0")
SHOWN = DeployedScope(8, 5, "chain", "ordered", "cuda", 100)


def scoped(scope: ArmScope = SEEN, verdict: Verdict = Verdict.CERTIFIED) -> RunFacts:
    base = facts()
    checks = tuple(replace(check, details={SCOPE: scope.to_json()}, verdict=verdict) for check in base.checks)
    return replace(base, checks=checks)


def reasons(deployed: DeployedScope, base: RunFacts) -> list[str]:
    policy = replace(load_policy("standard"), coverage={}, parts=PolicyParts(serving=ServingProfile(deployed=deployed)))
    outcome = decide(base, policy, (), NOW, no_subject=True)
    assert all(reason.answer is not Decision.BLOCK for reason in outcome.reasons if reason.requirement == "deployed")
    return [reason.text for reason in outcome.reasons if reason.requirement == "deployed"]


def test_a_run_in_the_deployment_s_shape_is_allowed():
    assert reasons(SHOWN, scoped()) == []
    assert reasons(DeployedScope(), facts()) == []
    policy = replace(load_policy("standard"), coverage={}, parts=PolicyParts(serving=ServingProfile(deployed=SHOWN)))
    assert decide(scoped(), policy, (), NOW, no_subject=True).answer is Decision.ALLOW


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_size": 64}, "audited at batch 1 to 8, deployed at 64"),
        ({"drafted": 6}, "audited with drafts of 5, deployed with 6"),
        ({"shape": "tree"}, "audited with shape chain, deployed with tree"),
        ({"numerics": "fast"}, "audited with numerics ordered, deployed with fast"),
        ({"device": "cpu"}, "audited with device cuda, deployed with cpu"),
        ({"context": 101}, "audited with up to 100 tokens of prompt and answer, deployed with 101"),
    ],
)
def test_each_part_is_decisive(changes, says):
    parts = PolicyParts(serving=ServingProfile(deployed=replace(SHOWN, **changes)))
    policy = replace(load_policy("standard"), coverage={}, parts=parts)
    assert decide(scoped(), policy, (), NOW, no_subject=True).answer is Decision.CANNOT_DECIDE
    assert reasons(replace(SHOWN, **changes), scoped()) == [f"arm {arm}: {says}" for arm in ("greedy", "sampled")]


def test_sizes_below_those_of_the_record_are_unseen_too():
    assert len(reasons(DeployedScope(batch_size=1), scoped(replace(SEEN, smallest_batch=4)))) == 2
    assert reasons(DeployedScope(batch_size=5), scoped(replace(SEEN, smallest_batch=4))) == []


@pytest.mark.parametrize("base", [facts(), scoped(ArmScope()), scoped(SEEN, Verdict.INCONCLUSIVE)])
def test_a_scope_that_no_certified_verdict_states_is_unknown(base):
    first, second = reasons(DeployedScope(batch_size=1), base)
    assert (first, second) == tuple(
        f"arm {arm}: audited at batch unknown, deployed at 1" for arm in ("greedy", "sampled")
    )


def test_policies_say_it_in_yaml(tmp_path):
    text = (
        "version: 1\nname: own\nrequire: [{claim: replay, checks: [replay]}]\n"
        "evidence: {min_tokens: 1, max_age: P1D}\ndeployed: {batch_size: 64, shape: chain, device: cuda}\n"
    )
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    assert load_policy(path).parts.serving.deployed == DeployedScope(64, None, "chain", None, "cuda")
    path.write_text(text.replace("batch_size: 64", "batch: 64"))
    with pytest.raises(UserError, match="batch"):
        load_policy(path)
