"""Filters that judge whole sentences or lines, for detectors that need context and cannot resume.

The text waits until a segment is complete. Where segments end follows from the text alone, so that the same text is
judged in the same segments under every drafting. What crosses the end of a segment is not found.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from engine.stream.interface import Action, FilterDecision, FilterFacts, FilterProgress, Mark, ResumedFilter

Find = Callable[[str], Iterable[Mark]]
"""A segment's marks, by characters of the segment."""
SENTENCE: Final = re.compile(r"[.!?][\"')\]]*\s|\n")
LINE: Final = re.compile(r"\n")
LONGEST: Final = 400
"""Characters after which a segment ends at its last blank, or there if it has none."""


class SegmentFilter(ResumedFilter[FilterProgress]):
    """A detector over the segments of one text."""

    def __init__(self, action: Action, find: Find, border: re.Pattern[str]) -> None:
        super().__init__(FilterProgress(action))
        self._find = find
        self._border = border

    def feed(self, text: str) -> FilterDecision:
        """Judge the segments that are complete now."""
        state = self._state
        state.text += text
        while (end := self._end(state.text, state.clear)) is not None:
            self._judge(end)
        return state.decided()

    def finish(self) -> FilterDecision:
        """Judge the rest as a segment."""
        if self._state.clear < len(self._state.text):
            self._judge(len(self._state.text))
        return self._state.decided()

    def _judge(self, end: int) -> None:
        state, start = self._state, self._state.clear
        for mark in self._find(state.text[start:end]):
            state.marks.append(Mark(start + mark.start, start + mark.end, mark.category))
        state.clear = end

    def _end(self, text: str, start: int) -> int | None:
        """The end of the segment that begins at `start`; None if it may go on."""
        limit = start + LONGEST
        matched = self._border.search(text, start, limit)
        if matched is not None:
            return matched.end()
        if len(text) < limit:
            return None
        blank = max(text.rfind(" ", start, limit), text.rfind("\t", start, limit))
        return blank + 1 if blank > start else limit


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """The detector of one arm, and where the segments end that it judges."""

    facts: FilterFacts
    marks: Find
    border: re.Pattern[str] = SENTENCE

    def open(self) -> SegmentFilter:
        """At the beginning of a text."""
        return SegmentFilter(self.facts.action, self.marks, self.border)
