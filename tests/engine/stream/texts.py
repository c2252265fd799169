"""Filters at work on texts that arrive in pieces, for tests."""

from __future__ import annotations

import random
from collections.abc import Iterator

from engine.stream.interface import FilterRules, Mark, filter_spec
from engine.stream.loading import load_filter


def patterns(categories, action="redact", side="output", **rules):
    return load_filter(filter_spec("patterns", action, side, {"categories": categories, **rules}))


def pieces(text: str, seed: int) -> Iterator[str]:
    """The text in random pieces, empty ones too."""
    numbers, at = random.Random(seed), 0
    while at < len(text):
        size = numbers.choice([0, 1, 1, 2, 3, 7])
        yield text[at : at + size]
        at += size


def judged(rules: FilterRules, parts) -> list[Mark]:
    """The marks of a whole text; asserts what every filter promises on the way."""
    judging, seen, clear, found = rules.open(), 0, 0, []
    for part in parts:
        seen += len(part)
        decision = judging.feed(part)
        assert clear <= decision.clear <= seen
        # a mark concerns nothing that was free to leave before
        assert all(mark.start >= clear and mark.end <= seen for mark in decision.marks)
        clear = decision.clear
        found += decision.marks
    decision = judging.finish()
    assert decision.clear == seen
    assert all(mark.start >= clear for mark in decision.marks)
    return sorted([*found, *decision.marks], key=lambda mark: (mark.start, mark.end, mark.category))
