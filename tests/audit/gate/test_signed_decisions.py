"""Signed decisions: what they state, where they are kept, and what does not verify."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.vsa.v1 import vsa_pb2

from audit.attest.statement import DECISION
from audit.attest.verify import Trust, verify_envelope
from audit.errors import UserError
from audit.evidence.verdicts import Verdict
from audit.gate.policy import load_policy
from audit.store import Store
from audit.store.base import keys
from tests.audit.gate.admission.stores import ARTIFACTS
from tests.audit.gate.runs import DRAFT, PASSING, SMALL_POLICY, TARGET, stored_run
from tests.audit.invoke import invoke

ALLOWED = ("--subject", f"target=sha256:{TARGET}")


class Place:
    """A store, a policy and two key pairs in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.policy = folder, folder / "policy.yaml"
        self.policy.write_text(SMALL_POLICY)
        for name in ("ours", "theirs"):
            keys.init(folder / name, f"example.org/{name}")
        self.out = folder / "decision.json"
        self.url = ""

    def gate(self, *more: str, run: str = "latest", verdicts=PASSING):
        if not self.url:
            self.url = stored_run(self.folder, verdicts, ARTIFACTS)
        place = () if run.endswith(".zip") else ("--store", self.url)
        return invoke("gate", run, "--policy", str(self.policy), "--trust-verdicts", *place, *more)

    def signed(self, *more: str, **how):
        return self.gate("--key", str(self.folder / "ours"), "--out", str(self.out), *more, **how)

    def verified(self, *more: str, key: str = "ours"):
        return invoke("verify", str(self.out), "--trusted-key", str(self.folder / f"{key}.pub"), *more)

    def statement(self) -> dict:
        return json.loads(base64.b64decode(json.loads(self.out.read_text())["payload"]))

    def decisions(self) -> int:
        with Store.open(self.url, create=False) as store:
            run = store.resolve("latest")
            return len(store.decisions(run)) + len(store.attestations.of_run(run, (DECISION,)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.medium
def test_an_allow_is_a_statement_about_what_the_run_used(place):
    done = place.signed(*ALLOWED)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith(f"signed: {place.out}, attestation sha256:")
    stated, predicate = place.statement(), place.statement()["predicate"]
    subjects = {item["name"]: item["digest"]["sha256"] for item in stated["subject"]}
    assert (subjects["target"], subjects["draft"]) == (TARGET, DRAFT)
    with Store.open(place.url, create=False) as store:
        run = store.load_run(store.resolve("latest"))
    assert set(subjects) == {"target", "draft", "tokenizer", "engine/spec", f"run/{run.ulid}"}
    assert (predicate["verificationResult"], predicate["verifiedLevels"]) == ("PASSED", ["SPECAUDIT_L4"])
    inputs = {item["uri"]: item["digest"]["sha256"] for item in predicate["inputAttestations"]}
    with Store.open(place.url, create=False) as store:
        (decision,) = store.decisions(run.ulid)
        (kept,) = store.attestations.of_run(run.ulid)
    assert kept.envelope == place.out.read_text()
    assert inputs["urn:specaudit:decision"] == decision.sha256
    assert inputs[f"urn:specaudit:record:{run.ulid}"] == run.record_root
    assert inputs["urn:specaudit:subject:target"] == TARGET
    assert predicate["policy"]["digest"]["sha256"] == hashlib.sha256(place.policy.read_bytes()).hexdigest()
    del predicate["verifiedLevels"]  # the package's message has one text there, the specification a list
    assert json_format.ParseDict(predicate, vsa_pb2.VerificationSummary()).policy.uri == "urn:specaudit:policy:small"
    assert invoke("db", "check", "--store", place.url).exit_code == 0


@pytest.mark.medium
def test_an_old_decision_does_not_verify_for_anything_else(place):
    place.signed()
    policy = f"sha256:{load_policy(place.policy).sha256}"
    holds = ("--subject", f"draft=sha256:{DRAFT}", "--policy-digest", policy, "--max-age", "1d", "--store", place.url)
    assert place.verified(*holds).exit_code == 0
    for more, line in (
        (("--subject", f"target=sha256:{'9' * 64}"), f"about target sha256:{TARGET}, not sha256:9999"),
        (("--subject", f"adapter=sha256:{'9' * 64}"), "has no subject adapter"),
        (("--policy-digest", f"sha256:{'9' * 64}"), f"is under policy {policy}, not sha256:9999"),
    ):
        refused = place.verified(*more)
        assert (refused.exit_code, refused.stdout.count("\n"), line in refused.stdout) == (1, 1, True), refused.output
    assert "0 of 1 signatures hold" in place.verified(key="theirs").stdout
    assert place.verified("--policy-digest", "x").exit_code == 2
    trust = Trust((keys.read_public(place.folder / "ours.pub"),), max_age=timedelta(days=30))
    for later, line in ((timedelta(days=31), "older than 30 days"), (-timedelta(hours=1), "from the future")):
        (problem,) = verify_envelope(place.out.read_bytes(), "d", trust, datetime.now(UTC) + later).mismatches
        assert line in problem


@pytest.mark.medium
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"verdicts": {**PASSING, "law": Verdict.FAULT}}, 1),
        ({"verdicts": {"replay": Verdict.CERTIFIED}}, 3),
        ({"run": "01ZZZZ"}, 3),
    ],
)
def test_what_is_not_allowed_is_signed_as_failed_and_does_not_verify(place, how, code):
    done = place.signed(*ALLOWED, "--warn-only" if code == 1 else "--no-subject", **how)
    assert done.exit_code == (0 if code == 1 else code)
    predicate = place.statement()["predicate"]
    assert (predicate["verificationResult"], predicate["verifiedLevels"]) == ("FAILED", [])
    assert {"name": "target", "digest": {"sha256": TARGET}} in place.statement()["subject"]
    refused = place.verified()
    line = 'mismatch: the decision is "FAILED" under urn:specaudit:policy:small: it lets nothing be deployed\n'
    assert (refused.exit_code, refused.stdout) == (1, line)


@pytest.mark.medium
def test_nothing_is_decided_that_cannot_be_signed(place, monkeypatch):
    place.gate()
    loose = place.folder / "loose"
    loose.write_bytes((place.folder / "ours").read_bytes())
    loose.chmod(0o644)
    (place.folder / "there.json").write_text("kept")
    ours, before = str(place.folder / "ours"), place.decisions()
    cases = [
        (("--key", str(place.folder / "none")), "cannot be read"),
        (("--key", str(loose)), "other users can read"),
        (("--key", f"{ours}.pub"), "not a private key"),
        (("--key", ours, "--out", str(place.folder / "there.json")), "the file exists"),
        (("--key", ours, "--out", str(place.folder / "gone" / "d.json")), "cannot be written"),
        (("--out", str(place.out)), "add --key FILE"),
    ]
    refused = [(place.gate(*more), words) for more, words in cases]
    monkeypatch.setitem(sys.modules, "securesystemslib.dsse", None)
    refused.append((place.signed(), "pip install 'specaudit[attest]'"))
    for done, words in refused:
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
        assert words in done.stderr
    assert place.decisions() == before
    assert (place.folder / "there.json").read_text() == "kept"
    assert [path.name for path in place.folder.iterdir() if path.name.startswith((".", "decision"))] == []


@pytest.mark.medium
def test_a_store_that_fails_leaves_no_envelope(place, monkeypatch):
    def failing(*given: object) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr(Store, "add_decision", failing)
    assert (place.signed().exit_code, place.out.exists()) == (2, False)


@pytest.mark.medium
def test_a_decision_on_a_bundle_needs_a_file_and_no_store(place):
    place.gate()
    bundle = place.folder / "run.zip"
    assert invoke("export", "latest", "--out", str(bundle), "--store", place.url).exit_code == 0
    refused = place.gate("--key", str(place.folder / "ours"), run=str(bundle))
    assert (refused.exit_code, "add --out FILE, or --store" in refused.stderr) == (2, True)
    done = place.signed(run=str(bundle))
    assert (done.exit_code, done.stderr) == (0, f"signed: {place.out}\n")
    inputs = {item["uri"]: item["digest"]["sha256"] for item in place.statement()["predicate"]["inputAttestations"]}
    assert inputs["urn:specaudit:bundle"] == hashlib.sha256(bundle.read_bytes()).hexdigest()
    assert place.verified("--subject", f"target=sha256:{TARGET}").exit_code == 0
    other = f"sqlite:///{place.folder / 'other.db'}"
    Store.open(other, create=True).close()
    assert "has no such statement" in place.verified("--store", other).stdout
    place.out.unlink()
    assert place.signed("--store", other, run=str(bundle)).exit_code == 0
    assert place.verified("--store", other).exit_code == 0
