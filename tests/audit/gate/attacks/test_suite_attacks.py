"""Attacks by the suite, the policy, the names and the moment: each is answered for its own reason."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from audit.gate.judge import judge
from audit.gate.judgement import GateRequest
from audit.gate.policy import load_policy
from audit.store import Store
from tests.audit.gate.attacks.honest import POLICY, SUITE, Answer, asked, copied, ran, written

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gate_attacks")]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("honest"), SUITE)


def suite(**sampled: Any) -> dict[str, Any]:
    """The honest suite with changes of the sampled arm; `top` holds changes of the whole."""
    made = copy.deepcopy(SUITE) | sampled.pop("top", {})
    made["arms"][1] |= sampled
    return made


SUITES = {
    "margin loosened": (
        suite(checks={"replay": {}, "acceptance_theory": {"margin": 0.9}}),
        "parameters: arm sampled: acceptance_theory judged with other limits: margin is 0.9",
    ),
    "confidence lowered": (
        suite(checks={"replay": {"confidence": 0.5}, "acceptance_theory": {"margin": 0.3}}),
        "parameters: arm sampled: replay judged with other limits: confidence is 0.5",
    ),
    "alpha lowered": (
        suite(checks={"replay": {}, "acceptance_theory": {"margin": 0.3, "alpha": 1e-9}}),
        "parameters: arm sampled: acceptance_theory judged with other limits: alpha is 1e-09",
    ),
    "one token": (suite(top={"sampling": {"max_new_tokens": 1}}), "min_tokens: the candidate arms emitted"),
    "one token drafts nothing": (suite(top={"sampling": {"max_new_tokens": 1}}), "speculation: arm "),
    "one prompt": (
        suite(top={"workloads": [{"name": "chat", "prompts": "suites:prompts/chat.jsonl", "limit": 1}], "samples": 8}),
        "workload: arm greedy: 1 different prompts, 8 are required",
    ),
    "temperature of nothing": (suite(sampling={"temperature": 1e-6}), "serves sampled: no candidate arm sampled"),
    "one token to choose from": (
        suite(sampling={"temperature": 1, "top_k": 1}),
        "serves sampled: no candidate arm sampled",
    ),
    "two tokens to choose from": (
        suite(sampling={"temperature": 1, "top_k": 2}),
        "serves sampled: no candidate arm sampled freely",
    ),
    "a low temperature": (suite(sampling={"temperature": 0.11}), "serves sampled: no candidate arm sampled freely"),
    "a low temperature and two tokens": (
        suite(sampling={"temperature": 0.1, "top_k": 2}),
        "serves sampled: no candidate arm sampled freely",
    ),
    "a bias of two tokens": (
        suite(sampling={"temperature": 1, "logit_bias": [[5, 100.0], [6, 100.0]]}),
        "serves sampled: no candidate arm sampled freely",
    ),
    "greedy only": (copy.deepcopy(SUITE) | {"arms": [SUITE["arms"][0]]}, "serves sampled: no candidate arm sampled"),
    "check left out": (suite(checks={"replay": {}}), "acceptance: arm sampled: acceptance_theory is missing"),
    "broken on purpose": (suite(fault="accepts_everything"), "known_bad: arm sampled is broken on purpose"),
    "lossy rule": (suite(verifier="typical"), "lossless: arm sampled: its rule typical declares itself lossy"),
}


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_that_makes_it_easy_is_not_allowed(name, tmp_path):
    document, says = SUITES[name]
    answer = asked(tmp_path, "latest", store=ran(tmp_path, document))
    assert answer.code in (1, 3), answer.output
    assert any(reason.startswith(says) for reason in answer.reasons), answer.output


def policy(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(POLICY) | changes


def evidence(**changes: Any) -> dict[str, Any]:
    return {"evidence": POLICY["evidence"] | changes}


OTHER = f"sha256:{'0' * 64}"
POLICIES = {
    "other suite digest": (policy(**evidence(suites=[OTHER])), "suites: suite attacked sha256:", 3),
    "check that did not run": (
        policy(require=[{"claim": "accounts", "checks": ["configuration"]}]),
        "accounts: arm greedy: configuration is missing",
        3,
    ),
    "check that does not apply": (
        policy(
            require=[*POLICY["require"], {"claim": "law", "checks": ["law"], "arms": {"temperature": "above_zero"}}]
        ),
        "law: arm sampled: law is missing",
        3,
    ),
    "situation that the suite waives": (policy(coverage={"after_rejection": 10**6}), "coverage: arm greedy: after_", 3),
    "too few tokens": (policy(**evidence(min_tokens=10**6)), "min_tokens: ", 3),
    "other target": (policy(subjects={"digests": {"target": OTHER}}), "subject target: policy is", 1),
    "other engine": (policy(subjects={"digests": {"engine/sampled": OTHER}}), "subject engine/sampled: ", 1),
    "image that nobody recorded": (policy(subjects={"digests": {"image": OTHER}}), "subject image: no candidate", 3),
    "adapter that nobody used": (policy(subjects={"digests": {"adapter": OTHER}}), "subject adapter: no candidate", 3),
    "unsigned": (policy(**evidence(signed=True)), "signed: the policy requires a log that a trusted key signed", 3),
    "arm by another name": (
        policy(require=[{"claim": "replay", "checks": ["replay"], "arms": {"names": ["sampIed"]}}]),
        "replay: the run has no candidate arm sampIed",
        3,
    ),
    "slow": (policy(floors={"tokens_per_forward": 3}), "floors: arm ", 1),
    "rejecting": (policy(floors={"acceptance": 1}), "floors: arm ", 1),
    "hotter than audited": (
        policy(serves={"sampled": {"highest": 2}}),
        "serves sampled: the highest temperature of the run is 1",
        3,
    ),
    "tools that nobody audited": (policy(serves={"tools": True}), "serves tools: no candidate arm", 3),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_requirement_that_the_run_does_not_meet_is_named(name, honest, tmp_path):
    rules, says, code = POLICIES[name]
    answer = asked(tmp_path, "latest", policy=rules, store=copied(honest, tmp_path))
    assert answer.code == code, answer.output
    assert any(reason.startswith(says) for reason in answer.reasons), answer.output


def text(**changes: Any) -> str:
    return json.dumps(policy(**changes))


DEEP = '{"version": 1, "name": ' + '{"a": ' * 5000 + "1" + "}" * 5001
TEXTS = {
    "a key twice": (text().replace('"name":', '"version": 1, "name":', 1), "appears twice"),
    "NaN": (text().replace('"most": 0.3', '"most": .nan'), "not a finite number"),
    "infinity": (text().replace('"most": 0.3', '"most": .inf'), "not a finite number"),
    "nested deeply": (DEEP, "nested deeper"),
    "huge": (text(description="x" * 2**20), "larger than 1 MiB"),
    "billion laughs": (
        "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
        "use fewer aliases",
    ),
    "two documents": (text() + "\n---\n" + text(), "second document"),
    "tag": (text().replace('"name": ', '"name": !!python/name:os.system ', 1), "the tag"),
    "claim of look-alikes": (text(require=[{"claim": "rep\u0406ay", "checks": ["replay"]}]), "matches"),
    "check of look-alikes": (text(require=[{"claim": "replay", "checks": ["repl\u0430y"]}]), "unknown check"),
    "role of look-alikes": (text(subjects={"digests": {"t\u0430rget": OTHER}}), "matches"),
    "bidirectional name": (text(name="safe\u202etcirts"), "matches"),
    "unknown key": (text(require_loss1ess=True), "unknown key"),
    "unknown parameter": (text(parameters={"law": {"leak_margins": {"most": 1}}}), "has no parameter"),
    "no requirement": (text(require=[]), "fewer than 1"),
    "no bytes": ("", "empty"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_policy_that_says_two_things_is_refused_in_one_line(name, honest, tmp_path):
    content, says = TEXTS[name]
    (tmp_path / "given.yaml").write_text(content, encoding="utf-8")
    answer = asked(tmp_path, "latest", policy=str(tmp_path / "given.yaml"), store=copied(honest, tmp_path))
    assert answer.code == 2
    assert says in answer.output
    assert len(answer.output.strip().splitlines()) == 1


def test_a_weaker_policy_under_the_same_name_is_seen(honest, tmp_path):
    store, strong = copied(honest, tmp_path), load_policy(written(tmp_path, "strong.yaml", POLICY))
    weak = policy(**evidence(min_tokens=1))
    answer = asked(tmp_path, "latest", f"--policy-digest=sha256:{strong.sha256}", policy=weak, store=store)
    assert answer.code == 3
    assert answer.reasons[0].startswith("policy: policy attacked is sha256:")
    pinned = f"--policy-digest=sha256:{strong.sha256}"
    assert asked(tmp_path, "latest", pinned, policy=str(tmp_path / "strong.yaml"), store=store).code == 0


def test_an_earlier_decision_opens_no_door_for_another_subject(honest, tmp_path):
    store = copied(honest, tmp_path)
    assert asked(tmp_path, "latest", store=store).code == 0
    answer = asked(tmp_path, "latest", "--subject", f"target={OTHER}", store=store)
    assert answer.code == 1
    assert answer.reasons[0].startswith("subject target: --subject is sha256:0000")
    homoglyph = asked(tmp_path, "latest", "--subject", f"t\u0430rget={OTHER}", store=store)
    assert (homoglyph.code, "no candidate arm used such a thing" in homoglyph.output) == (3, True)


@pytest.mark.parametrize(
    ("days", "says"), [(31, "the run began 31.0 days ago"), (-1, "in the future; check the clocks")]
)
def test_an_expired_and_a_future_run_are_not_allowed(days, says, honest, tmp_path):
    with Store.open(str(copied(honest, tmp_path)), create=False) as store:
        request = GateRequest(
            load_policy(written(tmp_path, "policy.yaml", POLICY)), (), "ci", datetime.now(UTC) + timedelta(days=days)
        )
        outcome = judge(store, "latest", request).outcome
    assert outcome.answer.exit_code == 3
    assert any(says in reason.text for reason in outcome.reasons)


def test_a_run_that_did_not_end_is_no_evidence(honest, tmp_path):
    from audit.store import RunStatus

    store = copied(honest, tmp_path)
    with Store.open(str(store), create=False) as opened:
        opened.set_status(opened.resolve("latest"), RunStatus.FAILED, "invalidated")
    answer = asked(tmp_path, "latest", store=store)
    assert answer.code == 3
    assert any(reason == "run: the run is failed, not finished" for reason in answer.reasons)


def test_a_file_called_like_a_packaged_policy_is_not_it(honest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("standard").write_text(json.dumps(POLICY))
    answer: Answer = asked(tmp_path, "latest", "--no-subject", policy="standard", store=copied(honest, tmp_path))
    assert answer.code == 3
    assert any("law is missing" in reason for reason in answer.reasons)
