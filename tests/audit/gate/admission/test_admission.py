"""The webhook's answers: the newest decision counts, and everything else denies."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from sqlalchemy import text

from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.gate.admission.app import PATH, Webhook
from audit.gate.admission.decide import Rules
from audit.gate.admission.reviews import TEMPLATES, MalformedReview, read_review
from audit.gate.policy import load_policy
from audit.store.base.canonical import sha256_json
from audit.store.base.keys import PrivateKey
from audit.store.base.values import NewCheck, NewJudgement, RunStatus
from audit.store.ledger.notes import signed
from audit.store.reading.decision_index import DecisionReader
from audit.store.store import Store
from engine.record.effective import Effective
from tests.audit.gate.admission.forgeries import edit
from tests.audit.gate.admission.stores import ARTIFACTS, NAMED, decide, deployment, made_store, pod, review
from tests.audit.gate.runs import DRAFT, TARGET
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, start

DAYS = timedelta(days=30)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made_store(tmp_path_factory.mktemp("admission"))


def webhook(url: str, key: PrivateKey | None = None, unannotated: bool = False) -> Webhook:
    rules = Rules(frozenset({load_policy("standard").sha256}), DAYS, unannotated)
    return Webhook(rules, DecisionReader(url, None if key is None else key.public), 5.0, lambda line: None)


def answered(hook: Webhook, subject, **more):
    found = hook.decide(read_review(review(subject, **more)))
    assert found.code == (200 if found.allowed else found.code)
    return found


@pytest.mark.medium
def test_a_new_decision_is_seen_without_a_restart_and_the_newest_counts(url: str):
    hook = webhook(url)
    assert "no decision under an accepted policy" in answered(hook, pod(NAMED)).message
    decide(url)
    assert answered(hook, pod(NAMED)).allowed
    assert answered(hook, deployment(NAMED)).allowed
    decide(url, "block")
    assert 'the newest decision is "block", not allow' in answered(hook, pod(NAMED)).message
    decide(url, age=timedelta(days=31))
    assert "744.0 hours old, 720.0 are allowed" in answered(hook, pod(NAMED)).message
    decide(url, age=-timedelta(days=1))
    assert "from the future" in answered(hook, pod(NAMED)).message
    decide(url, reasons=("allow: law: waived until 2026-01-01 00:00:00 UTC by alice: a pilot",))
    assert "waiver or review that the decision rests on ended 2026-01-01" in answered(hook, pod(NAMED)).message
    decide(url, reasons=("allow: law: waived until 2999-01-01 00:00:00 UTC by alice: a pilot",))
    assert answered(hook, pod(NAMED)).allowed
    key = PrivateKey("example.org/audit", b"1" * 32)
    keyed = webhook(url, key)
    decide(url)
    assert "no checkpoint that the given key signed" in answered(keyed, pod(NAMED)).message
    with Store.open(url, create=False) as store:
        store.add_checkpoint(lambda head: signed(head, key))
    assert answered(keyed, pod(NAMED)).allowed
    other = PrivateKey("example.org/audit", b"2" * 32)
    assert not answered(webhook(url, other), pod(NAMED)).allowed


def test_a_decision_for_less_than_the_policy_lists_admits_pods_that_say_so(url: str):
    decide(url, reasons=("allow: serves: greedy, tools alone, of the policy's greedy, sampled, tools",))
    hook = webhook(url)
    for words, allowed in {
        None: False,
        "sampled": False,
        "greedy,sampled": False,
        "": False,
        "tools, greedy": True,
    }.items():
        annotations = NAMED if words is None else NAMED | {"specaudit.dev/serves": words}
        answer = answered(hook, pod(annotations))
        assert answer.allowed is allowed
        assert allowed or "annotate one that does with specaudit.dev/serves: greedy,tools" in answer.message
    decide(url)
    assert answered(hook, pod(NAMED | {"specaudit.dev/serves": "sampled"})).allowed


def test_what_the_annotations_name_must_be_what_the_run_used(url: str):
    decide(url)
    hook = webhook(url)
    target, draft = NAMED["specaudit.dev/target"], NAMED["specaudit.dev/draft"]
    wrong = {
        "swapped": ({"specaudit.dev/target": draft, "specaudit.dev/draft": target}, "no decision"),
        "other target": (NAMED | {"specaudit.dev/target": f"sha256:{'0' * 64}"}, "no decision"),
        "without the draft": ({"specaudit.dev/target": target}, "wants these named: specaudit.dev/draft"),
        "no digest": (NAMED | {"specaudit.dev/draft": DRAFT}, "no digest"),
        "look-alike": (NAMED | {"specaudit.dev/Target": target}, "no decision"),
        "configuration": (NAMED | {"specaudit.dev/configuration": f"sha256:{TARGET}"}, "ran the configuration"),
        "other run": (NAMED | {"specaudit.dev/run": "01J00000000000000000000000"}, "no decision"),
        "configuration only": ({"specaudit.dev/configuration": f"sha256:{TARGET}"}, "names a model"),
        "nothing": (None, "no annotation names a model"),
    }
    answers = {name: answered(hook, pod(annotations)) for name, (annotations, _) in wrong.items()}
    assert [name for name, found in answers.items() if found.allowed] == []
    assert [name for name, (_, words) in wrong.items() if words not in answers[name].message] == []
    assert answered(webhook(url, unannotated=True), pod(None)).allowed
    outer = deployment(None)
    outer["metadata"]["annotations"] = NAMED
    assert "on the pod template too" in answered(webhook(url, unannotated=True), outer).message


def test_an_update_that_changes_nothing_and_a_deletion_are_admitted(url: str):
    decide(url, "block")
    hook = webhook(url)
    assert answered(hook, pod(NAMED), operation="UPDATE", oldObject=pod(NAMED)).allowed
    assert not answered(hook, pod(NAMED), operation="UPDATE", oldObject=pod(None)).allowed
    assert answered(hook, None, operation="DELETE").allowed


def test_malformed_bodies_are_refused_with_a_reason():
    nested = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    bodies = {
        "empty": b"",
        "no JSON": b"{",
        "binary": b"\xff\xfe",
        "nested": nested,
        "NaN": b'{"a": NaN}',
        "twice": b'{"kind": "AdmissionReview", "kind": "AdmissionReview"}',
        "list": b"[]",
        "v1beta1": review(pod(NAMED)).replace(b"k8s.io/v1", b"k8s.io/v1beta1"),
        "no uid": review(pod(NAMED), uid=""),
        "no object": review(None),
        "no operation": review(pod(NAMED)).replace(b'"operation"', b'"another"'),
        "an operation of another type": review(pod(NAMED)).replace(b'"CREATE"', b'["CREATE"]'),
        "no pod": review({"kind": "Service", "metadata": {}}),
        "no template": review({"kind": "Deployment", "spec": {}}),
        "annotation": review(pod({"specaudit.dev/target": 1})),
        "annotations": review(pod(["x"])),
    }
    for body in bodies.values():
        with pytest.raises(MalformedReview, match=r"."):
            read_review(body)


@pytest.mark.medium
def test_an_edited_or_unlogged_decision_denies(tmp_path: Path):
    url = made_store(tmp_path)
    decide(url, "block")
    hook = webhook(url)
    with connected(url) as connection:
        for name in connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
            connection.execute(text(f"DROP TRIGGER {name}"))
        connection.execute(text("UPDATE gate_decision SET decision = 'allow'"))
        connection.commit()
    assert "the row was edited after it was logged" in answered(hook, pod(NAMED)).message
    Path(url.removeprefix("sqlite:///")).unlink()
    gone = answered(hook, pod(NAMED))
    assert (gone.allowed, gone.code) == (False, 503)


def forget(url: str, *statements: str) -> None:
    """Remove the newest decision and what else the statements remove."""
    edit(url, "DELETE FROM gate_decision WHERE id = (SELECT max(id) FROM gate_decision)", *statements)


ENTRY_GONE = "DELETE FROM log_entry WHERE seq = (SELECT max(seq) FROM log_entry)"
ENTRY_RENAMED = "UPDATE log_entry SET kind = 'run', ref = '1' WHERE seq = (SELECT max(seq) FROM log_entry)"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("statements", "says"),
    [
        ((), "gate_decision 2 was edited or deleted after it was logged"),
        ((ENTRY_RENAMED,), "gate_decision 2 was edited or deleted after it was logged"),
        ((ENTRY_GONE,), "the log does not continue what this process saw"),
    ],
)
def test_a_block_that_was_seen_and_deleted_brings_no_allow_back(statements, says, tmp_path: Path):
    url = made_store(tmp_path)
    decide(url)
    hook = webhook(url)
    assert answered(hook, pod(NAMED)).allowed
    decide(url, "block")
    assert not answered(hook, pod(NAMED)).allowed
    forget(url, *statements)
    answer = answered(hook, pod(NAMED))
    assert (answer.allowed, answer.code) == (False, 503)
    assert says in answer.message


@pytest.mark.medium
def test_a_block_under_a_checkpoint_that_was_deleted_before_the_start_brings_no_allow_back(tmp_path: Path):
    url, key = made_store(tmp_path), PrivateKey("example.org/audit", b"1" * 32)
    decide(url)
    with Store.open(url, create=False) as store:
        store.add_checkpoint(lambda head: signed(head, key))
        decide(url, "block")
        head = store.add_checkpoint(lambda head: signed(head, key))
    forget(url)
    assert "gate_decision 2: the row was deleted" in answered(webhook(url), pod(NAMED)).message
    edit(url, f"DELETE FROM log_entry WHERE seq >= {head.size - 1}")
    assert "entries were cut off" in answered(webhook(url, key), pod(NAMED)).message
    edit(url, "DELETE FROM checkpoint WHERE id = 2")
    kept = replace(webhook(url), reader=DecisionReader(url, key.public, (head,)))
    assert "entries were cut off" in answered(kept, pod(NAMED)).message
    # with nothing from outside the store, nobody can know
    assert answered(webhook(url), pod(NAMED)).allowed


def test_a_checkpoint_from_outside_needs_the_key_that_signed_it(tmp_path: Path):
    (tmp_path / "note").write_text("no note")
    (tmp_path / "key.pub").write_text(PrivateKey("example.org/audit", b"1" * 32).public.text)
    files = [word for name in ("--cert", "--tls-key") for word in (name, str(tmp_path / "note"))]
    serve = ["admission", "serve", "--policy", "standard", *files, "--store", str(tmp_path / "none.db")]
    alone = invoke(*serve, "--checkpoint", str(tmp_path / "note"))
    assert (alone.exit_code, alone.stderr.count("\n"), "--checkpoint needs --key" in alone.stderr) == (2, 1, True)
    wrong = invoke(*serve, "--checkpoint", str(tmp_path / "note"), "--key", str(tmp_path / "key.pub"))
    assert (wrong.exit_code, wrong.stderr.count("\n"), "not a signed checkpoint" in wrong.stderr) == (2, 1, True)


def test_bad_options_are_one_line(tmp_path: Path):
    (tmp_path / "cert.pem").write_text("no certificate")
    arguments = ["admission", "serve", "--policy", "standard", "--tls-key", str(tmp_path / "cert.pem")]
    result = invoke(*arguments, "--cert", str(tmp_path / "cert.pem"), "--store", str(tmp_path / "none.db"))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert json.dumps(result.stderr).count("no such store") == 1


def test_the_manifests_fit_the_server():
    text_of = (Path(__file__).parents[4] / "docs" / "deploy" / "admission.yaml").read_text("utf-8")
    keys, service, workload, hook = YAML(typ="safe", pure=True).load_all(text_of)
    container = workload["spec"]["template"]["spec"]["containers"][0]
    result = invoke(*container["args"][1:], "--store", "none.db")
    assert "/keys/gate.pub: cannot be read" in result.stderr
    (rule,) = hook["webhooks"]
    assert (rule["failurePolicy"], rule["admissionReviewVersions"], rule["sideEffects"]) == ("Fail", ["v1"], "None")
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    assert {"name": "keys", "configMap": {"name": keys["metadata"]["name"]}} in volumes
    assert f"/keys/{next(iter(keys['data']))}" == container["args"][container["args"].index("--trusted-key") + 1]
    assert rule["clientConfig"]["service"]["path"] == PATH
    assert rule["clientConfig"]["service"]["name"] == service["metadata"]["name"] == workload["metadata"]["name"]
    kinds = {kind.lower() + "s" for kind in TEMPLATES} - {"podtemplates", "rollouts"}
    assert {name for entry in rule["rules"] for name in entry["resources"]} == kinds


def test_only_the_newest_decided_run_is_read(url: str, monkeypatch: pytest.MonkeyPatch):
    read = []
    whole = DecisionReader._run
    monkeypatch.setattr(DecisionReader, "_run", lambda *given: read.append(given) or whole(*given))
    with Store.open(url, create=False) as store:
        second = replace(start(), artifacts=ARTIFACTS)
        store.finish_run(store.begin_run(second), RunStatus.FINISHED, 0)
    decide(url)
    assert answered(webhook(url), pod(NAMED)).allowed
    assert len(read) == 1


@pytest.mark.medium
def test_a_later_fault_and_another_configuration_deny_and_the_own_one_is_admitted(tmp_path: Path):
    url = made_store(tmp_path)
    decide(url)
    hook = webhook(url)
    own = NAMED | {"specaudit.dev/configuration": f"sha256:{sha256_json(Effective().to_json())}"}
    assert answered(hook, pod(own)).allowed
    found = NewCheck("spec", "law", "law", Level.L4, CheckResult(Verdict.FAULT, "too far"))
    with Store.open(url, create=False) as store:
        store.add_judgement(store.resolve("latest"), NewJudgement("ci", start().environment, (found,)))
    assert "a result after the decision is a fault: arm spec: law" in answered(hook, pod(own)).message
    decide(url)
    assert answered(hook, pod(own)).allowed
