"""Which tokens a check examines: a comparison ends where two texts part, a companion covers its own requests."""

from __future__ import annotations

from dataclasses import replace

from audit.evidence.coverage.examined import anchored, anchored_or_until_parted, until_parted
from audit.evidence.records import ArmKind, Evidence
from tests.audit.checks.simulator import Setup, arm, world

CANDIDATE = arm(world(1), Setup(), 2)
FIRST, SECOND = CANDIDATE.requests
LENGTH = len(FIRST.tokens)


def parting_at(index: int):
    """The candidate as its own baseline, but for one token of the first request."""
    tokens = (*FIRST.tokens[:index], FIRST.tokens[index] + 1, *FIRST.tokens[index + 1 :])
    return replace(CANDIDATE, requests=(replace(FIRST, tokens=tokens), SECOND))


def test_equal_texts_are_examined_to_their_end():
    mask = until_parted(Evidence(CANDIDATE, CANDIDATE))
    assert mask(FIRST).all()
    assert mask(SECOND).all()


def test_a_comparison_examines_the_first_difference_and_nothing_after_it():
    mask = until_parted(Evidence(CANDIDATE, parting_at(2)))
    assert mask(FIRST).tolist() == [True] * 3 + [False] * (LENGTH - 3)
    assert mask(SECOND).all()


def test_a_request_without_a_baseline_is_not_examined():
    assert not until_parted(Evidence(CANDIDATE, replace(CANDIDATE, requests=(SECOND,))))(FIRST).any()
    assert not until_parted(Evidence(CANDIDATE))(FIRST).any()


def test_a_companion_examines_whole_requests_of_its_own():
    anchor = replace(CANDIDATE, kind=ArmKind.ANCHOR, requests=(SECOND,))
    evidence = Evidence(CANDIDATE, parting_at(1), companions={ArmKind.ANCHOR: anchor})
    for mask in (anchored(evidence), anchored_or_until_parted(evidence)):
        assert not mask(FIRST).any()
        assert mask(SECOND).all()
    assert anchored_or_until_parted(Evidence(CANDIDATE, parting_at(1)))(FIRST).sum() == 2
