"""Signed statements about a run, verified by this program, by openssl and by in-toto's own types."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf import json_format
from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
from in_toto_attestation.predicates.vsa.v1 import vsa_pb2
from in_toto_attestation.v1.statement import Statement
from jsonschema import Draft202012Validator

import schemas
from audit.attest.decision import DecisionFacts, decision_statement
from audit.attest.statement import StatementSubject, opened, sign
from audit.attest.verify import Trust, verify_envelope
from audit.store import Store
from audit.store.base import keys
from audit.store.reading.attestations import Registration
from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke
from tests.audit.store.build import start

NOW = datetime.now(UTC)
KINDS = ("test-result", "speculation", "eval-result")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return stored_run(tmp_path)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keys.init(tmp_path / "k", "example.org/audit")
    return tmp_path / "k"


@pytest.fixture
def envelopes(url: str, key: Path, tmp_path: Path) -> dict[str, Path]:
    made = invoke("attest", "latest", "--key", str(key), "--out", str(tmp_path), "--store", url)
    assert (made.exit_code, made.stderr) == (0, "")
    return {kind: next(tmp_path.glob(f"*.{kind}.intoto.json")) for kind in KINDS}


def verify(path: Path, key: Path, *more: str):
    return invoke("verify", str(path), "--key", f"{key}.pub", *more)


def payload(path: Path) -> dict:
    return json.loads(base64.b64decode(json.loads(path.read_text())["payload"]))


def changed(path: Path, old: bytes, new: bytes) -> None:
    document = json.loads(path.read_text())
    body = base64.b64decode(document["payload"])
    assert old in body
    document["payload"] = base64.b64encode(body.replace(old, new)).decode()
    path.write_text(json.dumps(document))


@pytest.mark.medium
def test_every_statement_verifies_with_and_without_the_store(envelopes, key, url):
    for path in envelopes.values():
        for more in ((), ("--store", url), ("--max-age", "1000w")):
            result = verify(path, key, *more)
            assert result.exit_code == 0, result.output
            assert "is signed by example.org/audit" in result.stdout


@pytest.mark.medium
def test_openssl_verifies_the_signature_over_the_preauthentication_encoding(envelopes, key, tmp_path):
    document = json.loads(envelopes["speculation"].read_text())
    body, kind = base64.b64decode(document["payload"]), document["payloadType"].encode()
    (tmp_path / "pae").write_bytes(b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body))
    (tmp_path / "sig").write_bytes(base64.b64decode(document["signatures"][0]["sig"]))
    raw = Ed25519PublicKey.from_public_bytes(keys.read_public(Path(f"{key}.pub")).raw)
    (tmp_path / "pub.pem").write_bytes(raw.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    files = ("-inkey", tmp_path / "pub.pem", "-in", tmp_path / "pae", "-sigfile", tmp_path / "sig")
    done = subprocess.run(["openssl", "pkeyutl", "-verify", "-pubin", "-rawin", *files], capture_output=True, text=True)
    assert "Signature Verified Successfully" in done.stdout, done.stderr


@pytest.mark.medium
def test_in_totos_own_types_read_the_statements(envelopes):
    for kind, path in envelopes.items():
        document = payload(path)
        statement = Statement.copy_from_pb(json_format.ParseDict(document, Statement([], "", {}).pb))
        statement.validate()
        if kind == "test-result":
            parsed = json_format.ParseDict(document["predicate"], test_result_pb2.TestResult())
            assert parsed.result == "PASSED"
            assert sorted(parsed.passed_tests) == ["spec/acceptance_theory", "spec/law", "spec/replay"]
            assert parsed.configuration[0].name.startswith("suite:")


def test_a_decision_is_a_verification_summary(key):
    subject = StatementSubject("target", "a" * 64)
    facts = DecisionFacts("R", "allow", NOW, "strict", "b" * 64, (subject,), {"urn:x": "c" * 64}, ("L4",))
    private = keys.read_private(key)
    for decision, result in (("allow", "PASSED"), ("block", "FAILED"), ("cannot_decide", "FAILED")):
        signed = sign(decision_statement(replace(facts, decision=decision)), [private])
        stated = dict(signed.statement.predicate)
        assert stated.pop("verifiedLevels") == (["SPECAUDIT_L4"] if decision == "allow" else [])
        # the package's message has one text there, the specification a list
        assert json_format.ParseDict(stated, vsa_pb2.VerificationSummary()).verification_result == result
        trust = Trust((private.public,), subjects=(subject,), max_age=timedelta(minutes=1))
        found = verify_envelope(signed.text.encode(), "d", trust, NOW)
        failed = ('the decision is "FAILED" under urn:specaudit:policy:strict: it lets nothing be deployed',)
        assert (found.mismatches, found.signers) == (() if decision == "allow" else failed, ("example.org/audit",))
        other = replace(trust, subjects=(StatementSubject("target", "e" * 64),))
        assert "not sha256:eeee" in verify_envelope(signed.text.encode(), "d", other, NOW).mismatches[0]


@pytest.mark.medium
def test_the_speculation_record_follows_its_schema(envelopes):
    document = payload(envelopes["speculation"])
    Draft202012Validator(schemas.load("speculation")).validate(document["predicate"])
    (arm,) = document["predicate"]["arms"]
    assert (arm["drafted"], arm["accepted"]) == (10, 5)
    assert document["predicate"]["log"]["entries"]
    assert document["predicate"]["registered_first"] is False


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_payload_does_not_verify(envelopes, key, kind):
    changed(envelopes[kind], b"specaudit", b"specaudIt") if kind != "test-result" else changed(
        envelopes[kind], b"PASSED", b"FAILED"
    )
    result = verify(envelopes[kind], key)
    assert result.exit_code == 1
    assert "0 of 1 signatures hold" in result.stdout


@pytest.mark.medium
def test_what_does_not_hold_is_named(envelopes, key, url, tmp_path):
    keys.init(tmp_path / "other", "other.org/audit")
    path, log_key = envelopes["speculation"], ("--log-key", f"{key}.pub")
    wrong = invoke("verify", str(path), "--key", str(tmp_path / "other.pub"))
    target = payload(path)["predicate"]["models"][1]
    cases = [
        (wrong, 1, "0 of 1 signatures hold; trusted: other.org/audit"),
        (invoke("verify", str(path)), 2, "add --key FILE.pub"),
        (verify(path, key, "--threshold", "2"), 2, "only 1 keys are trusted"),
        (verify(path, key, "--threshold", "2", "--key", f"{tmp_path}/other.pub"), 1, "1 of 2 signatures hold"),
        (verify(path, key, "--key", f"{key}.pub", "--threshold", "2"), 2, "keys are trusted"),
        (verify(path, key, "--subject", f"target=sha256:{'9' * 64}"), 1, "not sha256:9999"),
        (verify(path, key, "--subject", f"nothing=sha256:{'9' * 64}"), 1, "no subject nothing"),
        (verify(path, key, "--subject", f"{target['role']}=sha256:{target['sha256']}"), 0, "verified"),
        (verify(path, key, *log_key), 0, "verified"),
        (verify(path, key, "--log-key", f"{tmp_path}/other.pub"), 1, "not signed by the key"),
        (verify(path, key, "--max-age", "soon"), 2, "write a duration"),
    ]
    for result, code, words in cases:
        assert (result.exit_code, words in result.output) == (code, True), (words, result.output)
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    Store.open(empty, create=True).close()
    assert "has no such statement" in verify(path, key, "--store", empty).stdout


@pytest.mark.medium
def test_names_of_subjects_are_held_against_the_predicate(envelopes, key):
    private = keys.read_private(key)
    statement = opened(envelopes["speculation"].read_bytes(), "s", [private.public]).signed.statement
    first = statement.subjects[0]
    renamed = replace(statement, subjects=(replace(first, name="target2"), *statement.subjects[1:]))
    found = verify_envelope(sign(renamed, [private]).text.encode(), "s", Trust((private.public,)), NOW)
    assert [line.partition(":")[0] for line in found.mismatches] == [f"subject {first.name}", "subject target2"]


@pytest.mark.medium
def test_freshness_is_of_the_run_and_not_of_the_signature(envelopes, key):
    trust, private = Trust((keys.read_private(key).public,), max_age=timedelta(days=1)), envelopes["test-result"]
    raw = private.read_bytes()
    for now, words in ((NOW + timedelta(days=3), "older than"), (NOW - timedelta(days=9), "from the future")):
        assert words in verify_envelope(raw, "s", trust, now).mismatches[0]


@pytest.mark.medium
def test_registration_before_the_run_is_proven_by_the_log(tmp_path, key):
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    with Store.open(url, create=True) as store:
        begun = start()
        entry = Registration("s", begun.suite_sha256, "standard", "b" * 64, "ci", NOW)
        assert store.attestations.register(entry) == 0
    stored_run(tmp_path)
    made = invoke("attest", "latest", "--key", str(key), "--out", str(tmp_path), "--store", url)
    assert "registered before the run" in made.stdout
    path = next(tmp_path.glob("*.speculation.intoto.json"))
    result = verify(path, key, "--log-key", f"{key}.pub", "--store", url)
    assert (result.exit_code, "the suite was registered first" in result.stdout) == (0, True), result.output
    with Store.open(url, create=False) as store:
        store.attestations.register(entry)
        found = store.attestations.registrations(store.resolve("latest"))
    assert [item.precedes for item in found] == [True, False]
    eval_result = payload(next(tmp_path.glob("*.eval-result.intoto.json")))["predicate"]
    assert eval_result["preRegistration"]["policy"] == {"sha256": "b" * 64}


@pytest.mark.medium
def test_a_claim_of_registration_that_the_log_does_not_show_is_a_mismatch(envelopes, key):
    private = keys.read_private(key)
    statement = opened(envelopes["speculation"].read_bytes(), "s", [private.public]).signed.statement
    claims = replace(statement, predicate={**statement.predicate, "registered_first": True})
    trust = Trust((private.public,), log_keys=(private.public,))
    found = verify_envelope(sign(claims, [private]).text.encode(), "s", trust, NOW)
    assert found.mismatches == ("the log does not show that the suite was registered before the run",)


@pytest.mark.medium
def test_register_takes_a_suite_and_a_policy(tmp_path):
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    result = invoke("register", "quickstart", "standard", "--store", url)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("log entry  0\n")


@pytest.mark.medium
def test_the_folder_is_made_and_one_that_cannot_be_made_leaves_no_statement(url, key, tmp_path):
    (tmp_path / "file").write_text("")
    made = invoke("attest", "latest", "--key", str(key), "--out", str(tmp_path / "a" / "b"), "--store", url)
    assert (made.exit_code, len(list((tmp_path / "a" / "b").iterdir()))) == (0, len(KINDS))
    refused = invoke("attest", "latest", "--key", str(key), "--out", str(tmp_path / "file" / "b"), "--store", url)
    assert (refused.exit_code, "cannot be made" in refused.stderr) == (2, True)
    with Store.open(url, create=False) as store:
        assert len(store.attestations.of_run(store.resolve("latest"))) == len(KINDS)


@pytest.mark.medium
def test_nothing_is_overwritten_and_an_unfinished_run_is_refused(envelopes, key, url, tmp_path):
    again = invoke("attest", "latest", "--key", str(key), "--out", str(tmp_path), "--store", url)
    assert (again.exit_code, "the file exists" in again.stderr) == (2, True)
    with Store.open(url, create=False) as store:
        store.begin_run(replace(start(), suite_name="other"))
    assert invoke("attest", "latest", "--key", str(key), "--out", str(tmp_path), "--store", url).exit_code == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"payload": "e30=", "payloadType": "text/plain", "signatures": []}', "not of type"),
        ('{"payload": "!!", "payloadType": "application/vnd.in-toto+json", "signatures": 3}', "not a DSSE envelope"),
        ('{"payload": "e30=", "payload": "e30=", "payloadType": "a", "signatures": []}', "not a DSSE envelope"),
    ],
)
def test_what_is_no_envelope_is_one_line(tmp_path, key, text, words):
    path = tmp_path / "bad.json"
    path.write_text(text)
    result = verify(path, key)
    assert (result.exit_code, words in result.stderr, result.stderr.count("\n")) == (2, True, 1), result.output
