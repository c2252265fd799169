"""Bundles and imported runs under a policy that asks for reviews: no rejection can be left out without a word."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from audit.store import Store
from audit.store.base.canonical import to_json
from audit.store.base.keys import read_private
from audit.store.ledger import notes, statement_list
from tests.audit.gate.attacks.honest import POLICY, Answer, asked, edited
from tests.audit.gate.attacks.scene import REJECT, Honest, Scene, honest
from tests.audit.invoke import invoke
from tests.audit.store.bundle.build import parts_of, restated, zipped

__all__ = ["honest"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gate_attacks")]
ROLE = "safety"


def policy(honest: Honest, within: str = "7d") -> dict[str, Any]:
    """One approval by Bob; Carol's key signs the log."""
    evidence = POLICY["evidence"] | {"reviews_within": within}
    reviews = {ROLE: {"keys": honest.public("bob")}}
    return POLICY | {"reviews": reviews, "keys": {"trusted": honest.public("carol")}, "evidence": evidence}


@pytest.fixture
def scene(honest, tmp_path) -> Scene:
    """Bob approved the run."""
    made = Scene(honest, tmp_path, policy(honest))
    made.add(made.review(None, role=ROLE, author=made.author("bob", made.now - timedelta(minutes=2))))
    return made


def reject(scene: Scene) -> str:
    return scene.add(scene.review(None, role=ROLE, outcome=REJECT, comment="no"))


def judged(scene: Scene, bundle: str | Path, **changes: Any) -> Answer:
    return asked(scene.folder, str(bundle), policy={**scene.document, **changes})


def says(answer: Answer, *words: str) -> None:
    assert answer.code == 3, answer.output
    assert all(any(word in reason for reason in answer.reasons) for word in words), answer.output


def rewritten(bundle: str, change: Callable[[dict[str, Any], list[Any]], object]) -> Path:
    """The bundle with another proof and other attestations, all digests made to fit."""
    parts, name = parts_of(Path(bundle)), "tables/attestation.jsonl"
    proof, rows = json.loads(parts["log.jsonl"]), [json.loads(line) for line in parts[name].splitlines()]
    change(proof, rows)
    parts["log.jsonl"] = to_json(proof).encode() + b"\n"
    parts[name] = b"".join(to_json(row).encode() + b"\n" for row in rows)
    return zipped(Path(bundle).with_name("rewritten.zip"), restated(parts))


def strip(proof: dict[str, Any], rows: list[Any], payload: str) -> None:
    """Take a statement out of the rows and of the proof."""
    rows[:] = [row for row in rows if row["payload_sha256"] != payload]
    proof["entries"] = [entry for entry in proof["entries"] if payload not in entry["data"]]


def test_an_approved_run_with_a_signed_list_is_allowed_and_a_rejected_one_blocked(scene):
    assert judged(scene, scene.bundle("carol")).code == 0
    shown = invoke("verify", scene.bundle(), "--key", str(scene.honest.folder / "carol.pub")).stdout
    assert "has no other signed statement of the run" in shown
    reject(scene)
    assert judged(scene, scene.bundle("carol")).code == 1


def test_a_bundle_without_a_trusted_signature_may_lack_a_rejection(scene):
    says(judged(scene, scene.bundle()), "statements: the bundle may lack a rejection: it has no signed checkpoint")
    says(
        judged(scene, scene.bundle("mallory")), "statements: the bundle may lack a rejection: ", "not signed by the key"
    )
    revoked = {"trusted": scene.honest.public("bob"), "revoked": [scene.honest.key("carol").public.text]}
    says(judged(scene, scene.bundle("carol"), keys=revoked), "which the policy revokes")


def test_a_bundle_from_before_a_rejection_ages(scene, honest):
    bundle = scene.bundle("carol")
    reject(scene)
    assert judged(scene, bundle).code == 0, "nobody can know of what came later"
    short = policy(honest, "2s")["evidence"]
    time.sleep(2.1)
    says(judged(scene, bundle, evidence=short), "may lack a rejection: the signed list", "at most 0:00:02 are allowed")


def test_a_rejection_stripped_from_a_bundle_is_missed(scene):
    payload = reject(scene)
    bundle = scene.bundle("carol")
    without = rewritten(bundle, lambda proof, rows: strip(proof, rows, payload))
    says(judged(scene, without), f"lists a signed statement that was left out: {payload}")
    assert invoke("verify", str(without)).exit_code == 1
    assert invoke("import", str(without), "--store", str(scene.folder / "other.db")).exit_code == 2


LISTS: dict[str, tuple[Callable[[list[str], str], Any], str]] = {
    "without the line": (
        lambda lines, payload: [x for x in lines if payload not in x],
        "is not that of the checkpoint",
    ),
    "of another run": (
        lambda lines, payload: [x.replace(x[:8], "0" * 8) if payload in x else x for x in lines],
        "is not that of the checkpoint",
    ),
    "no list": (lambda lines, payload: None, "the list of signed statements is missing"),
    "no texts": (lambda lines, payload: [7], "the list of signed statements is missing"),
}


@pytest.mark.parametrize("name", LISTS)
def test_the_list_is_the_signed_one(name, scene):
    payload, (change, words) = reject(scene), LISTS[name]

    def both(proof: dict[str, Any], rows: list[Any]) -> None:
        strip(proof, rows, payload)
        proof["statements"] = change(proof["statements"], payload)

    says(judged(scene, rewritten(scene.bundle("carol"), both)), words)


def test_a_checkpoint_that_lists_nothing_shows_nothing(scene):
    """Notes of earlier versions have no line for statements; a trusted key may have signed many."""
    key = read_private(scene.honest.folder / "carol")
    with Store.open(str(scene.store), create=False) as store:
        store.add_checkpoint(lambda head: notes.signed(notes.TreeHead(head.size, head.root), key))
    says(judged(scene, scene.bundle()), "its checkpoint, of an earlier version, lists none")


def test_a_rejection_deleted_from_the_store_is_missed_at_the_export(scene):
    payload = reject(scene)
    scene.signed_log("carol")
    edited(scene.store, f"DELETE FROM attestation WHERE payload_sha256 = '{payload}'")
    done = invoke("export", "latest", "--out", str(scene.folder / "x.zip"), "--store", str(scene.store))
    assert (done.exit_code, "are not those of its last checkpoint" in done.stderr) == (3, True), done.output
    assert not (scene.folder / "x.zip").exists()


def test_a_list_names_no_other_run_and_no_moment_without_a_zone():
    lines = (f"{statement_list.run_hash('A')} 1", f"{statement_list.run_hash('B')} 2")
    assert statement_list.left_out(lines, "A", []) == ["1"]
    assert statement_list.left_out(lines, "A", ["1"]) == []
    for line in ("statements 2026-11-30T10:00:00 " + "A" * 43 + "=", "statements x y", "other", ""):
        assert statement_list.read_line(line) is None


def imported(scene: Scene, bundle: str, *more: str) -> Answer:
    """The gate's answer about the run in a store that imported it."""
    store = scene.folder / "central.db"
    store.unlink(missing_ok=True)
    done = invoke("import", bundle, "--store", str(store), *more)
    assert done.exit_code == 0, done.output
    return asked(scene.folder, scene.run.ulid, policy=scene.document, store=store)


def test_an_imported_run_counts_if_its_import_was_shown_all_statements(scene):
    key = str(scene.honest.folder / "carol.pub")
    bundle = scene.bundle("carol")
    assert imported(scene, bundle, "--key", key).code == 0
    says(imported(scene, bundle), "statements: the bundle of the import at", "it was imported without --key")
    mallory = str(scene.honest.folder / "mallory.pub")
    refused = invoke("import", bundle, "--store", str(scene.folder / "x.db"), "--key", mallory)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    other = imported(scene, scene.bundle("mallory"), "--key", mallory)
    says(other, "keys.trusted does not list the key example.org/mallory")


def test_an_import_without_a_list_is_no_import_with_a_key(scene):
    done = invoke(
        "import", scene.bundle(), "--store", str(scene.folder / "x.db"), "--key", str(scene.honest.folder / "carol.pub")
    )
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1), done.output
    assert "no checkpoint in it lists statements" in done.stderr


def test_a_bundle_of_a_store_that_imported_the_run_shows_both_lists(scene):
    """Carol's checkpoint of the second store knows nothing of what the first one had."""
    imported(scene, scene.bundle("carol"))
    second = Scene.__new__(Scene)
    second.__dict__.update(scene.__dict__, store=scene.folder / "central.db")
    (scene.folder / "carol.note").unlink()
    says(judged(scene, second.bundle("carol", scene.run.ulid)), "it was imported without --key")


def test_policies_that_count_no_statement_ask_for_no_list(scene):
    plain = {name: part for name, part in scene.document.items() if name not in ("reviews", "keys")}
    assert asked(scene.folder, scene.bundle(), policy=plain).code == 0
