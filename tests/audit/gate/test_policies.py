"""The packaged policies, each on clean and broken runs shaped as those of its engine."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import schemas
from audit.evidence.records import Level
from audit.evidence.verdicts import Verdict
from audit.gate.decide import decide
from audit.gate.decision import Decision, GateOutcome
from audit.gate.facts import RunFacts
from audit.gate.policy import PACKAGED, load_policy
from audit.gate.subjects import Subject
from audit.store import ArmCounts, ArtifactRef
from engine.record.effective import Effective
from tests.audit.gate.runs import DRAFT, NOW, TARGET, TOKENIZER, arm, asked, check, facts
from tests.support.cases import every_case

FOLDER = Path(__file__).parents[3] / "suites" / "policies"
SUBJECTS = (
    Subject("target", TARGET, "--subject"),
    Subject("draft", DRAFT, "--subject"),
    Subject("tokenizer", TOKENIZER, "--subject"),
)
LEVELS = {
    "standard": Level.L4,
    "strict": Level.L4,
    "throughput": Level.L4,
    "vllm": Level.L3,
    "transformers": Level.L3,
    "endpoint": Level.L1,
}
ASKED = {
    "standard": (("greedy_equality",), ("replay", "law", "acceptance_theory")),
    "strict": (("greedy_equality",), ("replay", "law", "acceptance_theory")),
    "throughput": (("greedy_equality", "performance"), ("replay", "law", "acceptance_theory", "performance")),
    "vllm": (
        ("liveness", "configuration", "reconciliation", "accounting", "greedy_equality"),
        ("liveness", "configuration", "reconciliation", "accounting", "law", "honoured"),
    ),
    "transformers": (
        ("configuration", "reconciliation", "accounting", "greedy_equality"),
        ("configuration", "reconciliation", "accounting", "law", "honoured", "acceptance_theory"),
    ),
    "endpoint": (
        ("liveness", "configuration", "surface_parity", "reconciliation", "greedy_equality"),
        ("liveness", "configuration", "surface_parity", "reconciliation", "two_sample", "seed"),
    ),
}
"""The checks of a greedy and of a sampled arm, by policy."""


FLOORS = ("rejected_first", "kept_whole", "after_rejection", "after_kept_whole")
"""The situations of the floors; an endpoint's answers do not show them."""


def clean(name: str) -> RunFacts:
    """A run of one greedy and one sampled arm on the policy's engine, whose checks are all certified."""
    base, level = facts(), LEVELS[name]
    counts = ArmCounts(requests=300, output=12_000, steps=6000, drafted=18_000, accepted=6000)
    made = {"level": level, "counts": counts, "effective": Effective.from_json({"rows": 8})}
    arms = [arm("greedy", "greedy", 0.0, **made), arm("sampled", "chain", 0.8, **made)]
    domains = frozenset({"chat", "code", "tools"})
    wide = {"requests": 300, "prompts": 150, "domains": domains, "longest": 400}
    workloads = {name: replace(asked(at), **wide) for name, at in (("greedy", 0.0), ("sampled", 0.8))}
    artifacts = base.run.artifacts
    if name == "endpoint":
        # a server's models are a name; its arms name no draft
        arms = [replace(each, spec={**each.spec, "draft": None}) for each in arms]
        artifacts = (ArtifactRef("target", "target", "served:my-model", None, TARGET),)
    run = replace(base.run, arms=(base.run.arms[0], *arms), artifacts=artifacts)
    pairs = zip(("greedy", "sampled"), ASKED[name], strict=True)
    checks = [check(each, asked, level=level) for each, names in pairs for asked in names]
    # what the engine's evidence cannot show is in the run all the same
    absent = () if "replay" in ASKED[name][1] else (check("sampled", "replay", Verdict.NOT_RUN, level),)
    counted = {} if name == "endpoint" else {each.name: dict.fromkeys(FLOORS, 100) for each in arms}
    return RunFacts(run, (*checks, *absent), coverage=counted, workloads=workloads)


def judged(name: str, base: RunFacts) -> GateOutcome:
    subjects = [each for each in SUBJECTS if name != "endpoint" or each.role == "target"]
    return decide(base, load_policy(name), subjects, NOW)


@pytest.mark.medium
def test_the_packaged_policies_are_those_in_the_folder_and_valid():
    digests = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.yaml")}
    assert digests == PACKAGED, "write the digests of the changed policies into audit/gate/policy.py"
    with every_case() as case:
        for name in PACKAGED:
            with case(name):
                policy = load_policy(name)
                assert policy.name == name
                jsonschema.validate(policy.document, schemas.load("policy"))
                assert policy.require_lossless
                assert "target" in policy.named
                assert not policy.allow_known_bad


@pytest.mark.parametrize("name", PACKAGED)
def test_a_clean_run_is_allowed(name):
    assert judged(name, clean(name)) == GateOutcome(Decision.ALLOW, ())


@pytest.mark.medium
@pytest.mark.parametrize("name", PACKAGED)
def test_each_check_of_a_policy_is_decisive(name):
    base = clean(name)
    with every_case() as case:
        for each in base.checks:
            if each.verdict is Verdict.NOT_RUN:
                continue
            others = tuple(other for other in base.checks if other is not each)
            with case(f"{each.arm} {each.check} is a fault"):
                broken = replace(base, checks=(*others, replace(each, verdict=Verdict.FAULT)))
                assert judged(name, broken).answer is Decision.BLOCK
            with case(f"{each.arm} {each.check} did not run"):
                left = replace(base, checks=(*others, replace(each, verdict=Verdict.NOT_RUN)))
                assert judged(name, left).answer is Decision.CANNOT_DECIDE
            with case(f"{each.arm} {each.check} is missing"):
                assert judged(name, replace(base, checks=others)).answer is Decision.CANNOT_DECIDE


@pytest.mark.parametrize("name", PACKAGED)
def test_a_run_with_faulty_arms_idle_speculation_or_unnamed_models_is_not_allowed(name):
    base = clean(name)
    sampled = base.run.arms[-1]
    idle = replace(sampled, counts=replace(sampled.counts, drafted=0, accepted=0))
    faulty = replace(sampled, spec={**sampled.spec, "fault": "argmax_draft_soft_q"})
    for changed, wanted in ((idle, Decision.CANNOT_DECIDE), (faulty, Decision.BLOCK)):
        run = replace(base.run, arms=(*base.run.arms[:-1], changed))
        assert judged(name, replace(base, run=run)).answer is wanted
    unnamed = decide(base, load_policy(name), (), NOW)
    assert unnamed.answer is Decision.CANNOT_DECIDE
    assert {reason.requirement for reason in unnamed.reasons} <= {
        "subject target",
        "subject draft",
        "subject tokenizer",
    }
    assert decide(base, load_policy(name), (), NOW, no_subject=True).answer is Decision.ALLOW


@pytest.mark.parametrize("name", PACKAGED)
def test_each_floor_of_a_policy_is_decisive(name):
    base, floors = clean(name), load_policy(name).coverage
    least = 100 if name == "strict" else 10
    assert dict(floors) == ({} if name == "endpoint" else dict.fromkeys(FLOORS, least))
    for situation in floors:
        seldom = {**base.coverage, "sampled": {**base.coverage["sampled"], situation: least - 1}}
        assert judged(name, replace(base, coverage=seldom)).answer is Decision.CANNOT_DECIDE
    if floors:
        assert judged(name, replace(base, coverage={})).answer is Decision.CANNOT_DECIDE


def test_a_policy_does_not_allow_the_run_of_an_engine_that_shows_less():
    """Each policy asks for what the others' engines do not show or their suites do not check."""
    for name, other in (("standard", "vllm"), ("vllm", "endpoint"), ("transformers", "vllm"), ("endpoint", "standard")):
        assert judged(name, clean(other)).answer is Decision.CANNOT_DECIDE


@pytest.mark.parametrize("name", PACKAGED)
def test_arms_of_a_service_need_one_certified_identity(name):
    base = clean(name)
    arms = tuple(replace(item, effective=item.effective.with_fact("url", "http://a/v1")) for item in base.run.arms)
    answered = replace(base, run=replace(base.run, arms=arms))
    found = judged(name, answered)
    assert found.answer is Decision.CANNOT_DECIDE
    assert {reason.requirement for reason in found.reasons} == {"one_identity"}
    for verdict, answer in (
        (Verdict.CERTIFIED, judged(name, base).answer),
        (Verdict.INCONCLUSIVE, Decision.CANNOT_DECIDE),
        (Verdict.FAULT, Decision.BLOCK),
    ):
        seen = [check(item.name, "identity", verdict) for item in answered.candidates]
        assert judged(name, replace(answered, checks=[*answered.checks, *seen])).answer is answer
