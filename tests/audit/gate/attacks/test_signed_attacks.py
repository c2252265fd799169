"""Attacks on signatures and on bundles."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from audit.store.base import keys
from audit.store.bundle.archive import FORMAT
from tests.audit.gate.attacks.honest import POLICY, SUITE, Answer, asked, copied, edited, ran
from tests.audit.invoke import invoke

VERSIONED = f'"bundle":{FORMAT}'.encode()
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gate_attacks")]


@dataclass(frozen=True)
class Signed:
    """A store with a signed checkpoint of its end, a proof, a bundle, and two key pairs."""

    store: Path
    folder: Path

    def public(self, name: str) -> str:
        return keys.read_public(self.folder / f"{name}.pub").text

    def file(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signed")
    store = ran(folder, SUITE)
    for name in ("ours", "theirs"):
        keys.init(folder / name, f"example.org/{name}")
    steps = (
        ("db", "checkpoint", "--key", str(folder / "theirs"), "--out", str(folder / "their-note")),
        ("db", "checkpoint", "--key", str(folder / "ours"), "--out", str(folder / "note")),
        ("db", "prove", "latest", "--out", str(folder / "proof.json")),
        ("export", "latest", "--out", str(folder / "run.zip")),
    )
    for step in steps:
        done = invoke(*step, "--store", str(store))
        assert done.exit_code == 0, done.output
    return Signed(store, folder)


def rules(trusted: dict[str, str], revoked: list[str] | None = None) -> dict[str, Any]:
    listed = {"trusted": trusted} | ({"revoked": revoked} if revoked else {})
    return POLICY | {"evidence": POLICY["evidence"] | {"signed": True}, "keys": listed}


def of_store(signed: Signed, tmp_path: Path, policy: dict[str, Any], note: str = "note") -> Answer:
    return asked(
        tmp_path, "latest", "--checkpoint", signed.file(note), policy=policy, store=copied(signed.store, tmp_path)
    )


def of_bundle(signed: Signed, tmp_path: Path, policy: dict[str, Any], *more: str, name: str = "run.zip") -> Answer:
    return asked(tmp_path, signed.file(name), *more, policy=policy)


def test_what_a_trusted_key_signed_is_allowed(signed, tmp_path):
    policy = rules({"ci": signed.public("ours")})
    assert of_store(signed, tmp_path, policy).code == 0
    assert of_bundle(signed, tmp_path, policy, "--proof", signed.file("proof.json")).code == 0
    assert of_bundle(signed, tmp_path, POLICY).code == 0


@pytest.mark.parametrize(
    ("trusted", "revoked", "note", "says"),
    [
        ("theirs", None, "note", "not signed by the key example.org/theirs"),
        ("ours", None, "their-note", "not signed by the key example.org/ours"),
        ("ours", "ours", "note", "which the policy revokes"),
        ("theirs", "ours", "note", "signed by the key example.org/ours, which the policy revokes"),
    ],
)
def test_a_key_that_is_not_trusted_signs_nothing(trusted, revoked, note, says, signed, tmp_path):
    policy = rules({"ci": signed.public(trusted)}, [signed.public(revoked)] if revoked else None)
    answer = of_store(signed, tmp_path, policy, note)
    assert answer.code == 3
    assert any(reason.startswith("signed: ") and says in reason for reason in answer.reasons), answer.output


def test_a_bundle_without_its_proof_or_with_that_of_another_key_is_not_allowed(signed, tmp_path):
    policy = rules({"ci": signed.public("theirs")})
    own = of_bundle(signed, tmp_path, policy)
    assert (own.code, "its checkpoint: not signed by the key example.org/theirs" in own.reasons[0]) == (3, True)
    assert of_bundle(signed, tmp_path, rules({"ci": signed.public("ours")})).code == 0
    answer = of_bundle(signed, tmp_path, policy, "--proof", signed.file("proof.json"))
    assert (answer.code, "not signed by the key example.org/theirs" in answer.output) == (3, True)


def test_an_edited_note_and_a_log_written_anew_are_not_allowed(signed, tmp_path):
    policy = rules({"ci": signed.public("ours")})
    lines = Path(signed.file("note")).read_text().splitlines(keepends=True)
    (tmp_path / "bigger").write_text("".join([lines[0], "9999\n", *lines[2:]]))
    store = copied(signed.store, tmp_path)
    bigger = asked(tmp_path, "latest", "--checkpoint", str(tmp_path / "bigger"), policy=policy, store=store)
    assert (bigger.code, "not signed by" in bigger.output) == (3, True)
    edited(store, "DELETE FROM log_entry")
    anew = asked(tmp_path, "latest", "--checkpoint", signed.file("note"), policy=policy, store=store)
    assert anew.code == 3
    assert "the log has 0 entries" in anew.output


def test_a_run_that_ended_after_the_note_is_not_covered_by_it(signed, tmp_path):
    (tmp_path / "later").mkdir()
    store = copied(signed.store, tmp_path)
    (tmp_path / "later" / "audit.db").write_bytes(store.read_bytes())
    later = ran(tmp_path / "later", SUITE)
    policy = rules({"ci": signed.public("ours")})
    answer = asked(tmp_path, "latest", "--checkpoint", signed.file("note"), policy=policy, store=later)
    assert answer.code == 3
    assert "the run ended after this checkpoint" in answer.output


def test_a_proof_of_another_run_is_not_one_of_this(signed, tmp_path):
    (tmp_path / "other").mkdir()
    other = ran(tmp_path / "other", SUITE)
    bundle = tmp_path / "other.zip"
    assert invoke("export", "latest", "--out", str(bundle), "--store", str(other)).exit_code == 0
    policy = rules({"ci": signed.public("ours")})
    answer = asked(tmp_path, str(bundle), "--proof", signed.file("proof.json"), policy=policy)
    assert (answer.code, "it is of run" in answer.output) == (3, True)


def rewritten(source: Path, target: Path, change: str, old: bytes = b"", new: bytes = b"") -> None:
    """A bundle with one part changed, or left out."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w") as after:
        for info in before.infolist():
            data = before.read(info)
            if info.filename.endswith(change):
                if not old:
                    continue
                assert old in data
                data = data.replace(old, new)
            after.writestr(info.filename, data)


@pytest.mark.parametrize(
    ("part", "old", "new", "says"),
    [
        ("check_result.jsonl", b'"certified"', b'"certifies"', "digest that the manifest states"),
        ("request.jsonl", b'"sample":0', b'"sample":1', "digest that the manifest states"),
        ("arm.jsonl", b"", b"", "is missing"),
        ("manifest.json", b"", b"", "is missing"),
        ("manifest.json", VERSIONED, VERSIONED + b"," + VERSIONED, "not canonical JSON"),
        ("manifest.json", VERSIONED, b'"bundle":NaN', "manifest"),
        ("manifest.json", VERSIONED, b'"bundle":9', "format 9"),
        ("manifest.json", VERSIONED, b'"bundle":' + b"[" * 5000 + b"1" + b"]" * 5000, "nested too deeply"),
    ],
)
def test_an_edited_bundle_is_refused(part, old, new, says, signed, tmp_path):
    target = tmp_path / "edited.zip"
    rewritten(Path(signed.file("run.zip")), target, part, old, new)
    answer = asked(tmp_path, str(target), policy=POLICY)
    assert answer.code == 2
    assert says in answer.output


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_truncated_bundle_is_refused(size, signed, tmp_path):
    target = tmp_path / "cut.zip"
    target.write_bytes(Path(signed.file("run.zip")).read_bytes()[:size])
    answer = asked(tmp_path, str(target), policy=POLICY)
    assert (answer.code, "not a whole zip file" in answer.output) == (2, True)
