"""Waivers and reviews as rows: the same on both databases, entries of the log, and part of a bundle."""

from __future__ import annotations

from datetime import timedelta

import pytest

from audit.attest.signing import sign_and_store
from audit.attest.statement import REVIEW, WAIVER
from audit.attest.waivers import (
    Author,
    PolicyReference,
    ReviewOutcome,
    RunReference,
    SignedReview,
    Unmet,
    Waiver,
    review_statement,
    stated,
    waiver_statement,
)
from audit.store import RunStatus, Store
from audit.store.base.keys import PrivateKey
from audit.store.verified_bundle import opened
from tests.audit.gate.runs import NOW
from tests.audit.store.build import fill

KEY = PrivateKey("example.org/alice", b"1" * 32)
TYPES = (WAIVER, REVIEW)


@pytest.mark.slow
def test_what_people_signed_is_read_again_logged_and_exported(any_url, tmp_path):
    with Store.open(any_url, create=False) as store:
        run = fill(store)
        store.finish_run(run, RunStatus.FINISHED, 0)
        place = RunReference(run, str(store.load_run(run).record_root))
        author, policy = Author("alice", KEY.public, NOW), PolicyReference("release", "a" * 64)
        unmet = Unmet("cannot_decide", "coverage", "spec", None, "near_tie")
        waiver = Waiver(place, policy, unmet, "seen elsewhere \u2713", None, author, NOW + timedelta(days=1))
        said = SignedReview(place, None, None, ReviewOutcome.REJECT, "safety", "no", author, None)
        statements = [waiver_statement(waiver), review_statement(said)]
        signed = sign_and_store(store, statements, [KEY], run, NOW)
        # the same statement again is the same waiver
        sign_and_store(store, statements[:1], [KEY], run, NOW)
        known = stated(store.attestations.of_run(run, TYPES))
        assert [item.id for item in (*known.waivers, *known.reviews)] == [item.payload_sha256 for item in signed]
        assert (known.waivers[0].unmet, known.waivers[0].reason, known.reviews[0].role) == (
            unmet,
            waiver.reason,
            "safety",
        )
        assert store.attestations.of_run(run, ()) == ()
        assert store.damage((run,)) == ()
        store.export_bundle(run, tmp_path / "run.zip")
    with opened(tmp_path / "run.zip") as bundle:
        assert stated(bundle.store.attestations.of_run(run, TYPES)) == known
