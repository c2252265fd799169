"""Serving profiles: read from files, within the policy's, shown by the run, recorded with the decision."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from audit.errors import UserError
from audit.gate.decide import decide
from audit.gate.decision import Decision
from audit.gate.evidence import read_facts
from audit.gate.facts import UNSIGNED
from audit.gate.policy import load_policy
from audit.gate.policy_parts import PolicyParts
from audit.gate.serving_profile import SampledRange, SampledSetting, ServingProfile, asked_profile, narrowed
from audit.gate.subjects import Subject
from audit.store import ArtifactRef, Store, StoredDecision
from audit.store.base.values import RunStatus
from audit.store.reading.reader import Attempt
from tests.audit.gate.attacks.honest import SUITE, ran, written
from tests.audit.gate.runs import DRAFT, NOW, TARGET, arm, facts
from tests.audit.invoke import invoke

OTHER = "9" * 64
ULID = "01J0000000000000000000000{}"


def profile(folder: Path, text: str) -> ServingProfile | None:
    (folder / "chat.yaml").write_text(text)
    return asked_profile([str(folder / "chat.yaml")])


BOTH = PolicyParts(serving=ServingProfile(("greedy", "sampled")))


def texts(base=None, subjects=(), serves=None, parts=BOTH):
    policy = replace(load_policy("standard"), coverage={}, parts=parts)
    outcome = decide(base or facts(), policy, subjects, NOW, no_subject=True, serves=serves)
    return [str(reason) for reason in outcome.reasons if not reason.requirement.startswith("subject")]


def test_a_file_says_what_is_served_and_how(tmp_path):
    read = profile(
        tmp_path,
        "version: 1\nserves: {sampled: {settings: [{temperature: 0.7, top_p: 0.95, logit_bias: true}]}}\n"
        "deployed: {batch_size: 4, context: 90}\n",
    )
    assert (read.serves, read.deployed.batch_size, read.deployed.context) == (("sampled",), 4, 90)
    assert list(map(str, read.sampled.settings)) == ["temperature 0.7, top_p 0.95, logit_bias"]
    assert len(read.sha256) == 64
    assert asked_profile(("greedy", "tools", "greedy")) == ServingProfile(("greedy", "tools"))
    assert asked_profile(()) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "version: 1\nserves: {sampled: {settings: [{temperature: 0.7, top-p: 1}]}}",
            'unknown key "top-p" in serves.sampled.settings[0]',
        ),
        ("version: 1\nserves: {sampled: {settings: [{top_p: 1}]}}", "chat.yaml:2: serves.sampled.settings[0]"),
        ("version: 1\nserves: {}", "chat.yaml:2: serves"),
        ("version: 1\ndeployed: {batch_size: 1}", "serves"),
        ("version: 1\nserves: {greedy: true}\ndeployed: {batch_size: none}", "chat.yaml:3: deployed.batch_size"),
        ("version: 2\nserves: {greedy: true}", "chat.yaml:1: version"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(text, says, tmp_path):
    with pytest.raises(UserError) as caught:
        profile(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tea",), "streaming, logprobs, adapters, or a serving profile's FILE.yaml"),
        (("greedy", "x/chat.yaml"), "leave the other words out"),
        (("no/such.yaml",), "no/such.yaml"),
    ],
)
def test_words_and_files_do_not_mix(words, says):
    with pytest.raises(UserError) as caught:
        asked_profile(words)
    assert says in str(caught.value)


SETTINGS = (SampledSetting(0.8), SampledSetting(0.4, top_k=5))


@pytest.mark.parametrize(
    ("ours", "own", "says"),
    [
        ({"lowest": 0.5}, {"settings": SETTINGS}, "the policy lets no deployment sample at temperature 0.4"),
        ({"highest": 0.7}, {"lowest": 0.8}, "the policy lets no deployment sample at temperature 0.8"),
        ({"settings": SETTINGS[:1]}, {"settings": SETTINGS}, "sample at temperature 0.4, top_k 5"),
    ],
)
def test_a_profile_beyond_the_policy_s_is_not_decided(ours, own, says):
    parts = PolicyParts(serving=ServingProfile(("sampled",), SampledRange(**ours)))
    reasons = texts(serves=ServingProfile(("sampled",), SampledRange(**own), sha256="a" * 64), parts=parts)
    assert any(reason.startswith("cannot_decide: serves sampled: ") and says in reason for reason in reasons)


def test_what_the_policy_states_and_the_profile_does_not_holds_too():
    policy = ServingProfile(("greedy", "sampled"), SampledRange(0.5, 1.0, 50, SETTINGS))
    kept = narrowed(policy, ServingProfile(("sampled",)))
    assert (kept.serves, kept.sampled) == (("sampled",), policy.sampled)
    own = narrowed(policy, ServingProfile(("sampled",), SampledRange(0.6, 0.6, settings=SETTINGS[:1])))
    assert own.sampled == SampledRange(0.6, 0.6, 50, SETTINGS[:1])


def test_the_decision_states_the_profile_by_its_digest():
    own = ServingProfile(("greedy", "sampled"), SampledRange(settings=(SampledSetting(0.8),)), sha256="a" * 64)
    (stated,) = texts(serves=own)
    assert stated == f"allow: serves: sha256:{'a' * 64} alone, of the policy's greedy, sampled"
    assert StoredDecision("r", "", {}, "allow", (stated,), "ci", NOW).serves == {f"sha256:{'a' * 64}"}


def two_drafts():
    """The greedy arm drafts with `draft`, the sampled one with `other`."""
    base = facts()
    refs = [ArtifactRef("draft", "draft", "a", None, DRAFT), ArtifactRef("draft", "other", "b", None, OTHER)]
    arms = [arm("greedy", "greedy", 0.0), arm("sampled", "chain", 0.8)]
    for item, draft in zip(arms, ("draft", "other"), strict=True):
        item.spec["draft"] = draft
    run = replace(base.run, arms=(base.run.arms[0], *arms), artifacts=(base.run.artifacts[0], *refs))
    return replace(base, run=run)


def test_a_draft_to_deploy_must_have_drafted_for_each_kind_that_is_served():
    draft = Subject("draft", DRAFT, "--subject")
    says = "cannot_decide: serves sampled: no candidate arm that sampled {} drafted with draft, which is to be deployed"
    assert texts(two_drafts(), (draft,)) == [says.format("freely")]
    own = ServingProfile(("sampled",), SampledRange(settings=(SampledSetting(0.8),)))
    assert (
        "no candidate arm that sampled at temperature 0.8 drafted with draft" in texts(two_drafts(), (draft,), own)[1]
    )
    assert texts(two_drafts(), (draft,), ServingProfile(("greedy",)))[1:] == []
    assert texts(two_drafts()) == []


def test_one_draft_of_two_does_not_name_the_kind():
    policy = load_policy("standard")
    named = [Subject("target", TARGET, "--subject"), Subject("draft", DRAFT, "--subject")]
    outcome = decide(two_drafts(), policy, named, NOW)
    asked_for = [reason.text for reason in outcome.reasons if reason.requirement == "subject draft"]
    assert asked_for == ["the policy wants it named; add --subject other=FOLDER, or say --no-subject"]
    both = [*named, Subject("other", OTHER, "--subject")]
    assert not [reason for reason in decide(two_drafts(), policy, both, NOW).reasons if "subject" in reason.requirement]


@pytest.mark.parametrize(
    ("attempts", "evidence", "answer", "says"),
    [
        ([(9, 1)], {}, Decision.CANNOT_DECIDE, "newest: 01J00000000000000000000009 of the same suite and models began"),
        ([(9, 1)], {"newest": False}, Decision.ALLOW, "began later and found a fault"),
        ([(8, 1), (9, 0)], {}, Decision.ALLOW, None),
        ([(9, "on")], {}, Decision.ALLOW, None),
        ([(8, 0), (9, None)], {}, Decision.CANNOT_DECIDE, "began later and is interrupted"),
        (
            [("-", 1), ("-", 3)],
            {},
            Decision.ALLOW,
            "attempts: 2 earlier runs of this suite and these models did not pass",
        ),
        ([("-", 1), ("-", 3)], {"attempts": 1}, Decision.CANNOT_DECIDE, "at most 1 are allowed"),
        ([("-", 1), ("-", 0)], {"attempts": 1}, Decision.ALLOW, "attempts: 1 earlier runs"),
    ],
)
def test_other_runs_of_the_suite_are_stated_and_bounded(attempts, evidence, answer, says):
    statuses = {None: RunStatus.INTERRUPTED, "on": RunStatus.RUNNING}
    runs = [Attempt(ULID.format(end), statuses.get(code, RunStatus.FINISHED), code) for end, code in attempts]
    policy = replace(load_policy("standard"), coverage={}, parts=PolicyParts(**evidence))
    outcome = decide(replace(facts(), attempts=tuple(runs)), policy, (), NOW, no_subject=True)
    assert outcome.answer is answer
    stated = [str(reason) for reason in outcome.reasons if reason.requirement in ("newest", "attempts")]
    assert [says in reason for reason in stated] == ([] if says is None else [True])


CELLS = (
    SampledSetting(1.0),
    SampledSetting(0.7, top_p=0.95),
    SampledSetting(0.3, top_k=40),
    SampledSetting(0.9, min_p=0.05, presence_penalty=0.5),
    SampledSetting(0.8, repetition_penalty=1.1, frequency_penalty=0.2),
)
POLICY = {
    "version": 1,
    "name": "served",
    "require": [{"claim": "replay", "checks": ["replay"]}],
    "evidence": {"min_tokens": 100, "max_age": "1d"},
    "serves": {"sampled": {}},
}


def plain(setting: SampledSetting) -> dict[str, float]:
    """The parameters that are not at their defaults."""
    names = [part.name for part in fields(setting)]
    off = SampledSetting(-1.0)
    return {name: getattr(setting, name) for name in names if getattr(setting, name) != getattr(off, name)}


BEYOND = (
    *(({"temperature": 1.3}, {}), ({"top_p": 0.5}, {}), ({"logit_bias": True}, {}), ({}, {"batch_size": 64})),
    *(({}, {"drafted": 9}), ({}, {"context": 10_000}), ({}, {"device": "cuda"}), ({}, {"engine": "vllm"})),
    *(({}, {"version": "9.9"}), ({}, {"weights": "awq"}), ({}, {"proposer": "eagle3"})),
    *(({}, {"models": {role: [f"sha256:{OTHER}"]}}) for role in ("target", "draft", "tokenizer")),
)
"""What a profile claims more than the run showed: a setting, or a part of how the deployment runs."""


@pytest.mark.slow
def test_honest_profiles_are_allowed_and_each_that_claims_more_is_not(tmp_path):
    sampled = SUITE["arms"][1]
    arms = [
        sampled | {"name": f"cell{place}", "sampling": plain(cell), "checks": {"replay": {}}}
        for place, cell in enumerate(CELLS)
    ]
    store = ran(tmp_path, SUITE | {"arms": arms})
    policy, chance, wrong = load_policy(written(tmp_path, "policy.yaml", POLICY)), random.Random(4), []
    with Store.open(str(store), create=False) as opened:
        run = opened.resolve("latest")
        shown = read_facts(opened, run, trust_verdicts=False, broken=(), ending=UNSIGNED, announce=lambda arm: None)
        (tmp_path / "shown.yaml").write_text(invoke("profile", "--store", str(store)).stdout)
    own = asked_profile([str(tmp_path / "shown.yaml")])
    assert set(own.sampled.settings) == set(CELLS)
    assert (own.serves, own.deployed.batch_size, own.deployed.drafted) == (("sampled",), 2, 2)
    assert decide(shown, policy, (), datetime.now(UTC), serves=own).answer is Decision.ALLOW
    stated = YAML(typ="safe").load((tmp_path / "shown.yaml").read_text())["deployed"]
    assert {*stated} >= {"engine", "version", "proposer", "models"}
    for number in range(100):
        honest = number % 2 == 0
        settings = [plain(cell) for cell in chance.sample(CELLS, chance.randint(1, len(CELLS)))]
        deployed = {name: stated[name] for name in chance.sample(sorted(stated), chance.randint(0, len(stated)))}
        deployed |= {"batch_size": chance.randint(1, 2), "drafted": chance.randint(1, 2)}
        if not honest:
            setting, scope = chance.choice(BEYOND)
            settings += [settings[0] | setting] if setting else []
            deployed |= scope
        document = {"version": 1, "serves": {"sampled": {"settings": settings}}, "deployed": deployed}
        own = asked_profile([str(written(tmp_path, "chat.yaml", document))])
        outcome = decide(shown, policy, (), datetime.now(UTC), serves=own)
        if (outcome.answer is Decision.ALLOW) is not honest:
            wrong.append((document, outcome.reasons))
    print(f"50 honest profiles and 50 that claim more, {len(wrong)} decided wrongly")
    assert wrong == []
