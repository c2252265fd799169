from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from audit.evidence.verdicts import Verdict
from audit.gate.decision import Decision
from audit.gate.judge import judge
from audit.gate.judgement import GateRequest
from audit.gate.policy import load_policy
from audit.gate.subjects import parse_subject
from audit.store import ArtifactRef, Store, StoredDecision
from tests.audit.gate.runs import PASSING, stored_run
from tests.audit.invoke import invoke
from tests.support.model_folders import model_folder

POLICY = """\
version: 1
name: small
require:
  - {claim: replay, checks: [replay]}
  - {claim: law, checks: [law]}
evidence: {min_tokens: 5, max_age: 30d, min_level: L3, stored_verdicts: true}
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return str(path)


def gate(url: str, policy: str, *more: str, run: str = "latest"):
    """The verdicts of these stores are made up, so that nothing in their records gives them."""
    return invoke("gate", run, "--policy", policy, "--store", url, "--trust-verdicts", *more)


TRUSTED = "allow: verdicts: --trust-verdicts: the stored verdicts decide, nobody computed them from the record"


def decisions(url: str) -> tuple[StoredDecision, ...]:
    with Store.open(url, create=False) as store:
        return store.decisions(store.resolve("latest"))


@pytest.mark.medium
def test_allow(tmp_path, policy):
    url = stored_run(tmp_path)
    result = gate(url, policy, "--actor", "ci")
    assert result.exit_code == 0
    assert result.stdout.startswith("allow: ")
    (decision,) = decisions(url)
    assert (decision.decision, decision.reasons, decision.actor) == ("allow", (TRUSTED,), "ci")
    assert decision.policy["name"] == "small"


@pytest.mark.medium
@pytest.mark.parametrize("verdict", [Verdict.FAULT, Verdict.INCONCLUSIVE])
def test_a_fault_blocks_and_is_recorded(tmp_path, policy, verdict):
    url = stored_run(tmp_path, {**PASSING, "law": verdict})
    result = gate(url, policy, "--format", "json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["decision"] == "block"
    assert document["reasons"][1]["text"] == f"arm spec: law is {verdict}: told so"
    (decision,) = decisions(url)
    assert decision.decision == "block"
    assert decision.reasons == (TRUSTED, f"block: law: arm spec: law is {verdict}: told so")


@pytest.mark.medium
def test_a_missing_claim_cannot_be_decided(tmp_path, policy):
    url = stored_run(tmp_path, {"replay": Verdict.CERTIFIED})
    result = gate(url, policy)
    assert result.exit_code == 3
    assert "cannot decide: law: arm spec: law is missing" in result.stdout
    assert decisions(url)[0].decision == "cannot_decide"


@pytest.mark.medium
def test_stale_evidence_cannot_be_decided(tmp_path, policy):
    url = stored_run(tmp_path)
    with Store.open(url, create=False) as store:
        later = datetime.now(UTC) + timedelta(days=31)
        judgement = judge(store, "latest", GateRequest(load_policy(policy), (), "ci", later, trust_verdicts=True))
    assert judgement.outcome.answer is Decision.CANNOT_DECIDE
    assert "max_age" in [reason.requirement for reason in judgement.outcome.reasons]


@pytest.mark.medium
def test_a_changed_record_cannot_be_decided(tmp_path, policy):
    url = stored_run(tmp_path)
    with sqlite3.connect(tmp_path / "audit.db") as database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f'drop trigger "{name}"')
        database.execute("update content set text = 'edited'")
    database.close()
    result = gate(url, policy)
    assert result.exit_code == 3
    assert "cannot decide: record: " in result.stdout


@pytest.mark.medium
def test_an_unknown_run_cannot_be_decided(tmp_path, policy):
    result = gate(stored_run(tmp_path), policy, run="01ZZZZ")
    assert result.exit_code == 3
    assert result.stdout.startswith("cannot decide: no run ")


@pytest.mark.medium
def test_a_draft_that_differs_by_one_byte_is_blocked(tmp_path, policy):
    folder = model_folder(tmp_path / "draft")
    draft = ArtifactRef("draft", "draft", "draft", None, parse_subject(f"draft={folder}").sha256)
    url = stored_run(tmp_path, artifacts=(draft,))
    assert gate(url, policy, "--subject", f"draft={folder}").exit_code == 0
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"z")
    result = gate(url, policy, "--subject", f"draft={folder}")
    assert result.exit_code == 1
    assert "block: subject draft: " in result.stdout


@pytest.mark.medium
@pytest.mark.parametrize(
    "arguments",
    [
        ("--policy", "nowhere.yaml"),
        ("--policy", "nowhere"),
        ("--policy", "standard", "--subject", "draft"),
        ("--policy", "standard", "--format", "xml"),
        (),
    ],
)
def test_invalid_input_is_told_and_records_nothing(tmp_path, arguments):
    url = stored_run(tmp_path)
    result = invoke("gate", "latest", "--store", url, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert decisions(url) == ()


NAMED = "subjects: {named: [target], named_if_used: [draft]}\n"


@pytest.mark.medium
def test_roles_that_nobody_named_cannot_be_decided_and_are_waived_aloud(tmp_path):
    url, policy = stored_run(tmp_path), tmp_path / "policy.yaml"
    policy.write_text(POLICY + NAMED)
    refused = gate(url, str(policy))
    assert refused.exit_code == 3
    for role in ("target", "draft"):
        fix = f"add --subject {role}=FOLDER, or say --no-subject"
        assert f"cannot decide: subject {role}: the policy wants it named; {fix}" in refused.stdout
    waived = gate(url, str(policy), "--no-subject")
    assert waived.exit_code == 0
    assert "  allow: subject draft: not named; --no-subject waived it" in waived.stdout
    assert decisions(url)[-1].decision == "allow"
    assert decisions(url)[-1].reasons == (
        TRUSTED,
        "allow: subject target: not named; --no-subject waived it",
        "allow: subject draft: not named; --no-subject waived it",
    )


def test_a_missing_store_is_not_created(tmp_path, policy):
    result = gate(f"sqlite:///{tmp_path / 'none.db'}", policy)
    assert result.exit_code == 2
    assert not (tmp_path / "none.db").exists()
