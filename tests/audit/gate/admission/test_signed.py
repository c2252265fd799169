"""The webhook with trusted keys: a signed decision is needed, and it is verified once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from audit.gate.admission import decide as module
from audit.gate.admission.app import Webhook
from audit.gate.admission.decide import Rules, SignedDecisions
from audit.gate.admission.reviews import read_review
from audit.gate.policy import load_policy
from audit.store.reading.decision_index import DecisionReader
from tests.audit.gate.admission.forgeries import FORGERIES, OURS, THEIRS, edit
from tests.audit.gate.admission.stores import NAMED, decide, made_store, pod, review, sign
from tests.audit.invoke import invoke
from tests.audit.store.build import connected


def webhook(url: str) -> Webhook:
    rules = Rules(frozenset({load_policy("standard").sha256}), timedelta(days=30), False)
    return Webhook(rules, DecisionReader(url, None), 5.0, lambda line: None, SignedDecisions((OURS.public,)))


def answered(hook: Webhook, annotations=None):
    return hook.decide(read_review(review(pod(annotations or NAMED))))


@pytest.mark.medium
def test_a_forgery_is_not_admitted(tmp_path: Path):
    url = made_store(tmp_path)
    hook, wrong = webhook(url), []
    decide(url)
    assert "no trusted key signed the newest decision" in answered(hook).message
    # a test over TLS tries the others
    for name in (
        "a row that another key signed",
        "an old allow after a signed block",
        "a signature about other models",
    ):
        forgery = FORGERIES[name]
        sign(url, OURS)
        before = answered(hook)
        forgery.act(url)
        after = answered(hook, forgery.pod)
        if forgery.undo is not None:
            forgery.undo(url)
        if not before.allowed or after.allowed or forgery.words not in after.message:
            wrong.append(f"{name}: {before.message}, {after.message}")
    assert wrong == []


@pytest.mark.medium
def test_each_statement_is_verified_once_and_a_digest_that_is_not_the_payloads_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url, verified = made_store(tmp_path), []
    whole = module.opened
    monkeypatch.setattr(module, "opened", lambda *given: verified.append(given) or whole(*given))
    sign(url, THEIRS)
    sign(url, OURS)
    hook = webhook(url)
    assert [answered(hook).allowed for _ in range(3)] == [True] * 3
    assert len(verified) == 2
    edit(url, "UPDATE attestation SET envelope = '{}'")
    assert answered(hook).allowed  # what was verified stays signed, whatever the row holds now
    edit(url, f"UPDATE attestation SET payload_sha256 = '{'8' * 64}'")
    assert not answered(hook).allowed
    with connected(url) as connection:
        assert connection.scalar(text("SELECT count(*) FROM attestation")) == 2


def test_a_key_that_cannot_be_read_is_one_line(tmp_path: Path):
    options = ("--policy", "standard", "--cert", "c", "--tls-key", "k", "--store", "none.db")
    done = invoke("admission", "serve", *options, "--trusted-key", str(tmp_path / "none.pub"))
    assert (done.exit_code, done.stderr.count("\n"), "none.pub: cannot be read" in done.stderr) == (2, 1, True)
