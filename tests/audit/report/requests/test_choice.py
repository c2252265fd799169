"""The choice of requests is the stated rule."""

from __future__ import annotations

import hashlib

from audit.evidence.verdicts import Finding, Verdict
from audit.report.requests.choice import chosen, findings_by_request
from audit.store import RequestKey
from tests.audit.store.build import fill_finished
from tests.audit.store.conftest import store

__all__ = ["store"]

KEYS = [RequestKey(arm, f"c{case}", 0) for arm in ("a", "b") for case in range(20)]


def digest(name):
    return hashlib.sha256(name.encode()).hexdigest()


def test_findings_come_first_and_the_smallest_digests_follow():
    found = ["b/c7#0", "a/c3#0", "a/c9#0", "elsewhere#0", "b/c7#0", "a/c1#0"]
    choice = chosen(KEYS, found, most=7, most_named=3)
    assert [key.name for key in choice.keys[:3]] == ["b/c7#0", "a/c3#0", "a/c9#0"]
    for arm, names in (("a", choice.keys[3::2]), ("b", choice.keys[4::2])):
        others = sorted((key.name for key in KEYS if key.arm == arm and key.name not in found), key=digest)
        assert [key.name for key in names] == others[:2]
    assert (choice.named, choice.of_named, choice.of, choice.left_out) == (3, 4, 40, 33)
    assert choice.rule.startswith("7 of 40 requests are shown, and 33 are left out. 3 of 4 with a finding come first")


def test_the_order_of_the_requests_does_not_matter():
    assert chosen(KEYS[::-1], [], most=5, most_named=5).keys == chosen(KEYS, [], most=5, most_named=5).keys


def test_a_small_run_is_shown_whole():
    assert set(chosen(KEYS, [], most=50, most_named=5).keys) == set(KEYS)
    assert chosen(KEYS, [], most=50, most_named=5).rule == "All 40 are shown."
    assert chosen(KEYS[:1], ["a/c0#0"], most=5, most_named=5).rule == "There is one, and it is shown."
    assert chosen([], [], most=5, most_named=5).keys == ()


def test_findings_of_faults_come_before_others(store):
    run = fill_finished(store)
    replay, law = sorted(store.checks(run), key=lambda check: check.verdict != Verdict.CERTIFIED)
    assert law.verdict is Verdict.FAULT
    (ordered,) = findings_by_request([replay, law]).values()
    assert [one.check for one in ordered] == ["law", "replay"]
    assert law.findings == (Finding("r0", 3, "differs"),)
