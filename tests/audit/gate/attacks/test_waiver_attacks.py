"""Attacks on waivers and reviews: each is refused for its own reason, and the requirement stays unmet."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from audit.attest.signing import stored
from audit.attest.statement import sign
from audit.attest.waivers import PolicyReference, RunReference, Unmet, waiver_statement
from audit.store import Store
from tests.audit.gate.attacks.honest import POLICY, SUITE, Answer, asked, copied, edited, ran, written
from tests.audit.gate.attacks.scene import DAY, REJECT, Honest, Scene, honest, rules, scene
from tests.audit.invoke import invoke
from tests.audit.store.bundle.build import edited as changed

__all__ = ["honest", "scene"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gate_attacks")]


def refused(answer: Answer, says: str, code: int = 3) -> None:
    """The decision stays, its requirement is unmet, and a remark says why the statement counts for nothing."""
    assert answer.code == code, answer.output
    assert any(reason.startswith("law: arm sampled: law is missing") for reason in answer.reasons), answer.output
    assert any(says in reason for reason in answer.reasons), answer.output


def test_an_approved_waiver_is_a_remark_in_every_format_the_row_and_show(scene):
    waiver = scene.waived()
    answer = scene.asked()
    assert answer.code == 0, answer.output
    reason = answer.reasons[0]
    assert all(other.startswith("coverage: ") for other in answer.reasons[1:])
    for words in ("waived until", "by alice (key of alice), approved by bob", "measured in another run", "OPS-7"):
        assert words in reason
    assert waiver[:12] in reason
    policy = ("--policy", str(scene.folder / "waived.yaml"), "--store", str(scene.store))
    for form in ("text", "json", "junit", "github", "sarif", "markdown"):
        shown = invoke("gate", "latest", *policy, "--format", form)
        assert shown.exit_code == 0
        for words in (waiver[:12], "alice", "bob", "measured in another run", "waived until"):
            assert words in shown.stdout.replace("\\", ""), form
    with Store.open(str(scene.store), create=False) as store:
        assert waiver[:12] in store.decisions(scene.run.ulid)[-1].reasons[0]
    assert waiver[:12] in invoke("show", "latest", "--store", str(scene.store)).stdout


Attack = Callable[[Scene], object]
WAIVED: dict[str, tuple[Attack, str]] = {
    "nobody approved": (lambda it: it.add(it.waiver()), "0 of 1 approvals"),
    "expired": (lambda it: it.waived(author=it.author("alice", it.now - 3 * DAY), until=it.now - DAY), "it expired on"),
    "not valid yet": (
        lambda it: it.waived(author=it.author("alice", it.now + DAY), until=it.now + 2 * DAY),
        "not valid yet",
    ),
    "longer than allowed": (lambda it: it.waived(until=it.now + 15 * DAY), "longer than 14 days"),
    "unknown key": (lambda it: it.waived(author=it.author("mallory")), "which the policy does not list"),
    "under a trusted name": (
        lambda it: it.waived(author=it.author("mallory", actor="alice")),
        "signed by the key example.org/mallory",
    ),
    "of another policy": (
        lambda it: it.waived(policy=PolicyReference(it.policy.name, "0" * 64)),
        "it is under policy attacked sha256:0000",
    ),
    "of another run": (
        lambda it: it.waived(run=RunReference("01J00000000000000000000000", it.run.record_root)),
        "it is of run 01J00000000000000000000000",
    ),
    "of another record": (
        lambda it: it.waived(run=RunReference(it.run.ulid, "0" * 64)),
        "with another root, sha256:0000",
    ),
    "not allowed by the policy": (
        lambda it: it.waived(unmet=Unmet("cannot_decide", "workload", "sampled", None, "prompts")),
        "the policy accepts no waiver of workload, only of: law",
    ),
    "of a lossy rule": (lambda it: it.waived(unmet=Unmet("block", "lossless", "sampled")), "lossless can never be"),
    "of a subject": (lambda it: it.waived(unmet=Unmet("block", "subject target")), "subject target can never be"),
    "of the whole claim": (lambda it: it.waived(unmet=Unmet("cannot_decide", "law")), "no such requirement is unmet"),
    "of another arm": (
        lambda it: it.waived(unmet=Unmet("cannot_decide", "law", "greedy", "law")),
        "no such requirement is unmet",
    ),
    "of a block": (lambda it: it.waived(unmet=Unmet("block", "law", "sampled", "law")), "no such requirement is unmet"),
}
APPROVED: dict[str, tuple[Callable[[Scene, str], object], str]] = {
    "by the requester's key": (
        lambda it, waiver: it.add(it.review(waiver, "alice", author=it.author("alice", actor="bob"))),
        "the review by bob counts for nothing: it is the requester's own",
    ),
    "by the requester with another key": (
        lambda it, waiver: it.add(it.review(waiver, "bob", author=it.author("bob", actor=" \uff21lice "))),
        "it is the requester's own",
    ),
    "by an unknown key": (
        lambda it, waiver: it.add(it.review(waiver, "mallory")),
        "the review by mallory counts for nothing: it is signed by the key example.org/mallory",
    ),
    "an approval that is over": (
        lambda it, waiver: it.add(it.review(waiver, until=it.now - timedelta(seconds=1))),
        "the review by bob counts for nothing: it expired on",
    ),
    "an approval of another waiver": (lambda it, waiver: it.add(it.review("0" * 64)), "0 of 1 approvals"),
    "an approval of the run": (lambda it, waiver: it.add(it.review(None)), "0 of 1 approvals"),
    "an approval from the future": (
        lambda it, waiver: it.add(it.review(waiver, author=it.author("bob", it.now + DAY))),
        "the review by bob counts for nothing: it is not valid yet",
    ),
    "an approval of another record": (
        lambda it, waiver: it.add(it.review(waiver, run=RunReference(it.run.ulid, "0" * 64))),
        "with another root",
    ),
    "a rejection after it": (
        lambda it, waiver: (
            it.add(it.review(waiver, author=it.author("bob", it.now - DAY))),
            it.add(it.review(waiver, outcome=REJECT, comment="not on my watch")),
        ),
        "bob rejected it: not on my watch",
    ),
    "an old approval copied behind the rejection": (
        lambda it, waiver: (
            it.add(it.review(waiver, outcome=REJECT, comment="no")),
            it.add(it.review(waiver, author=it.author("bob", it.now - DAY))),
        ),
        "bob rejected it: no",
    ),
    "withdrawn by the requester": (
        lambda it, waiver: (it.add(it.review(waiver)), it.add(it.review(waiver, "alice", outcome=REJECT))),
        "alice rejected it: seen",
    ),
}


@pytest.mark.parametrize("name", WAIVED)
def test_a_waiver_that_does_not_hold_waives_nothing(name, scene):
    attack, says = WAIVED[name]
    attack(scene)
    refused(scene.asked(), says)


@pytest.mark.parametrize("name", APPROVED)
def test_a_waiver_without_another_persons_valid_approval_waives_nothing(name, scene):
    attack, says = APPROVED[name]
    attack(scene, scene.add(scene.waiver()))
    refused(scene.asked(), says)


def test_a_policy_accepts_no_waiver_unless_it_says_so(honest, tmp_path):
    policy = rules(honest)
    policy.pop("waivers")
    scene = Scene(honest, tmp_path, policy)
    scene.waived()
    refused(scene.asked(), "counts for nothing: the policy accepts no waivers")


@pytest.mark.parametrize(
    ("revoked", "says"),
    [
        ("alice", "signed by the key example.org/alice"),
        ("bob", "the review by bob counts for nothing: it is signed by"),
    ],
)
def test_a_revoked_key_neither_asks_nor_approves(revoked, says, honest, tmp_path):
    scene = Scene(honest, tmp_path, rules(honest, keys={"revoked": [honest.key(revoked).public.text]}))
    scene.waived()
    answer = scene.asked()
    refused(answer, says)
    assert "which the policy revokes" in answer.output


def test_one_key_under_two_names_is_one_approval(honest, tmp_path):
    listed = honest.public("alice", "bob", "carol") | {"bob again": honest.key("bob").public.text}
    waivers = {"keys": listed, "longest": "14d", "requirements": ["law"], "approvals": 2}
    scene = Scene(honest, tmp_path, rules(honest, waivers=waivers))
    waiver = scene.waived()
    scene.add(scene.review(waiver, author=scene.author("bob", actor="bob again")))
    refused(scene.asked(), "1 of 2 approvals")
    scene.add(scene.review(waiver, "carol"))
    assert scene.asked().code == 0


def test_a_statement_that_its_key_did_not_sign_counts_for_nothing(scene):
    scene.add(scene.review(scene.add(scene.waiver(), signer="mallory")))
    refused(scene.asked(), "0 of 1 signatures hold; trusted: example.org/alice")


def test_a_waiver_changed_after_it_was_signed_counts_for_nothing(scene):
    signed = sign(
        waiver_statement(scene.waiver(unmet=Unmet("cannot_decide", "law", "greedy", "law"))),
        [scene.honest.key("alice")],
    )
    document = json.loads(signed.text)
    body = base64.b64decode(document["payload"]).replace(b'"arm":"greedy"', b'"arm":"sampled"')
    document["payload"] = base64.b64encode(body).decode()
    with Store.open(str(scene.store), create=False) as store:
        row = replace(stored(signed, scene.run.ulid, scene.now), envelope=json.dumps(document))
        store.attestations.add([row])
    refused(scene.asked(), "0 of 1 signatures hold")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"requirement": "law"}, "the waiver is malformed: "),
        ({"until": "soon"}, "until is no moment with a time zone"),
        ({"until": "2999-01-01"}, "until is no moment with a time zone"),
        ({"run": {"ulid": "01J00000000000000000000000", "record_root": "0" * 64}}, "the subjects of the waiver"),
        ({"key": "alice"}, "it names no public key"),
    ],
)
def test_a_malformed_waiver_counts_for_nothing(change, says, scene):
    statement = waiver_statement(scene.waiver())
    waiver = scene.add_statement(replace(statement, predicate={**statement.predicate, **change}), "alice")
    scene.add(scene.review(waiver))
    refused(scene.asked(), says)


DAMAGE = {
    "waiver edited": (
        "UPDATE attestation SET envelope = replace(envelope, 'a', 'b')",
        "was edited after it was logged",
    ),
    "called another type": ("UPDATE attestation SET predicate_type = 'x'", "was edited after it was logged"),
    "given to another run": ("UPDATE attestation SET run_id = NULL", "was edited after it was logged"),
    "rejection deleted": (
        "DELETE FROM attestation WHERE id = (SELECT max(id) FROM attestation)",
        "was deleted after it was logged",
    ),
    "log entry deleted": (
        "DELETE FROM log_entry WHERE seq = (SELECT max(seq) FROM log_entry WHERE kind = 'attestation')",
        "log",
    ),
    "inserted past the log": (
        "INSERT INTO attestation (run_id, predicate_type, payload_sha256, envelope, subjects, created_at) "
        "SELECT run_id, predicate_type, payload_sha256, envelope, subjects, created_at FROM attestation LIMIT 1",
        "no entry of the log covers it",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_waiver_saves_no_store_that_somebody_edited(name, scene):
    scene.waived()
    statement, says = DAMAGE[name]
    edited(scene.store, statement)
    answer = scene.asked()
    assert answer.code == 3
    assert any(reason.startswith("record: not what it was") and says in reason for reason in answer.reasons), (
        answer.output
    )


def test_a_waiver_of_one_run_is_none_of_the_next(scene):
    waiver, review = scene.waiver(), scene.review(scene.add(scene.waiver()))
    assert scene.add(review)
    (scene.folder / "next").mkdir()
    later = Path(copied(scene.store, scene.folder / "next"))
    suite = written(scene.folder, "suite.yaml", SUITE)
    done = invoke("run", str(suite), "--store", str(later), "--results", str(scene.folder / "next.json"))
    assert done.exit_code == 0, done.output
    scene.store = later
    refused_before = scene.asked()
    assert refused_before.code == 3
    assert not any("waiver" in reason for reason in refused_before.reasons)
    scene.add(waiver)
    scene.add(review)
    refused(scene.asked(), f"it is of run {scene.run.ulid}")


def test_a_bundle_has_its_waivers_and_none_that_its_key_did_not_sign(scene):
    waiver = scene.waived()
    allowed = asked(scene.folder, scene.bundle("carol"), policy=scene.document)
    assert (allowed.code, waiver[:12] in allowed.reasons[0]) == (0, True), allowed.output

    def forge(rows: list[Any]) -> None:
        for row in rows:
            row["envelope"] = row["envelope"].replace('"sig": "', '"sig": "AAAA')

    forged = changed(Path(scene.bundle("carol")), "attestation", forge)
    refused(asked(scene.folder, str(forged), policy=scene.document), "0 of 1 signatures hold")


def test_a_signed_decision_ends_with_its_waiver(scene):
    scene.waived(until=scene.now + timedelta(seconds=8))
    key, out = str(scene.honest.folder / "bob"), scene.folder / "decision.json"
    answer = scene.asked("--key", key, "--out", str(out))
    assert answer.code == 0, answer.output
    verified = invoke("verify", str(out), "--key", f"{key}.pub")
    while verified.exit_code == 0:
        time.sleep(1)
        verified = invoke("verify", str(out), "--key", f"{key}.pub")
    assert "a waiver or review that the decision rests on ended" in verified.stdout
    assert datetime.now(UTC) > scene.now + timedelta(seconds=8)


def test_a_fault_is_never_waived(honest, tmp_path):
    document = json.loads(json.dumps(SUITE))
    document["arms"][1] |= {"fault": "accepts_everything", "checks": {"replay": {}}}
    (tmp_path / "broken").mkdir()
    broken = Honest(ran(tmp_path / "broken", document), honest.folder)
    waivers = rules(honest)["waivers"] | {"requirements": ["replay"]}
    scene = Scene(broken, tmp_path, POLICY | {"allow_known_bad": True, "waivers": waivers})
    scene.waived(unmet=Unmet("block", "replay", "sampled", "replay"))
    answer = scene.asked()
    assert answer.code == 1, answer.output
    assert any("replay found a fault, which can never be waived" in reason for reason in answer.reasons), answer.output


def test_a_policy_that_waives_what_can_never_be_waived_is_refused(honest, tmp_path):
    for name in ("lossless", "known_bad", "record", "signed", "subject target"):
        waivers = rules(honest)["waivers"] | {"requirements": ["law", name]}
        answer = asked(tmp_path, "latest", policy=rules(honest, waivers=waivers), store=honest.store)
        assert answer.code == 2
        assert f'"{name}" can never be waived' in answer.output
