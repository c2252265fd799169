"""Protocol of a safety filter: its input text and its decisions.

A filter reads a response as it grows, or a prompt as a whole. Positions are characters of the text that it was fed, so
every filter of an arm speaks about the same text, and their order does not matter. A filter that decides by the text
alone, whatever the pieces in which it arrives, decides the same under speculation as without: pieces end where steps
end, and steps differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeVar

from engine.core.errors import InvalidRequest


class Action(StrEnum):
    """A filter's decision on a text."""

    PASS = "pass"
    """Everything that was fed may leave."""
    HOLD = "hold"
    """The end of what was fed must wait for more text."""
    REDACT = "redact"
    """Marked characters leave as `engine.stream.redaction.REDACTED`."""
    STOP = "stop"
    """The response ends before the marked characters."""
    REFUSE = "refuse"
    """As STOP, and the response counts as refused; a refused prompt gets no tokens."""


ENDING: Final = (Action.STOP, Action.REFUSE)
"""Actions after which nothing more leaves."""


class Side(StrEnum):
    """The text that a filter judges."""

    OUTPUT = "output"
    PROMPT = "prompt"


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """One filter of an arm. `rules` is canonical JSON, so that equal rules are equal specifications.

    Raises:
        InvalidRequest: an action that the side does not have.
    """

    kind: str
    action: Action
    side: Side = Side.OUTPUT
    rules: str = "{}"

    def __post_init__(self) -> None:
        if self.action in (Action.PASS, Action.HOLD):
            raise InvalidRequest(f"filter {self.kind}: action {self.action} is no reaction; use redact, stop or refuse")
        if self.side is Side.PROMPT and self.action is not Action.REFUSE:
            raise InvalidRequest(f"filter {self.kind}: a prompt can only be refused; use action: refuse")

    @property
    def document(self) -> Mapping[str, Any]:
        """The rules as JSON values."""
        rules: Mapping[str, Any] = json.loads(self.rules)
        return rules

    def given(self, *known: str) -> Mapping[str, Any]:
        """The rules of a filter that knows these. Raises InvalidRequest: another one."""
        rules = self.document
        unknown = sorted(set(rules) - set(known))
        if unknown:
            raise InvalidRequest(f"filter {self.kind} has no rule {unknown[0]!r}; it has: {', '.join(known)}")
        return rules

    def facts(self, version: str) -> FilterFacts:
        """The identity of the filter that these rules and a component of that version make."""
        ruleset = hashlib.sha256(self.rules.encode()).hexdigest()
        return FilterFacts(self.kind, version, ruleset, self.action, self.side)


def filter_spec(kind: str, action: str, side: str, rules: Mapping[str, Any]) -> FilterSpec:
    """The specification with the rules in canonical form. Raises InvalidRequest: see `FilterSpec`."""
    written = json.dumps(rules, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return FilterSpec(kind, Action(action), Side(side), written)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """An arm whose text is recorded as it leaves, through filters if there are any."""

    filters: tuple[FilterSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class FilterFacts:
    """A filter's identity: equal facts promise equal decisions on equal texts.

    ruleset: SHA-256 of the rules in canonical JSON.
    """

    component: str
    version: str
    ruleset: str
    action: Action
    side: Side


@dataclass(frozen=True, slots=True)
class Mark:
    """The characters [start, end) that made a filter react, and why. An empty range ends a response there."""

    start: int
    end: int
    category: str


@dataclass(frozen=True, slots=True)
class FilterDecision:
    """The answer to one piece of text.

    clear: characters from the beginning of the text on which the filter is done: they may leave, marked ones as the
        action says.
    marks: found in this piece, or completed by it.
    """

    action: Action
    clear: int
    marks: tuple[Mark, ...] = ()


class TextFilter(Protocol):
    """A filter at work on one text."""

    def feed(self, text: str) -> FilterDecision:
        """Judge more of the text."""

    def finish(self) -> FilterDecision:
        """Judge what still waits; no more text comes."""

    def snapshot(self) -> object:
        """The state, which later calls do not change."""

    def rollback(self, state: object) -> None:
        """Return to a snapshot: what was fed since was never seen."""


class FilterRules(Protocol):
    """A filter's rules, loaded once per arm by the function that the registry names.

    That function takes a `FilterSpec` and raises InvalidRequest for bad rules or a missing package.
    """

    @property
    def facts(self) -> FilterFacts:
        """The identity."""

    def open(self) -> TextFilter:
        """A filter at the beginning of a text."""


@dataclass(slots=True)
class FilterProgress:
    """The part that most filters share: the text so far, what is done, and how a decision follows from marks."""

    action: Action
    text: str = ""
    clear: int = 0
    marks: list[Mark] = field(default_factory=list)

    def decided(self) -> FilterDecision:
        """The decision with the marks since the last one."""
        marks, self.marks = tuple(self.marks), []
        waits = Action.HOLD if self.clear < len(self.text) else Action.PASS
        return FilterDecision(self.action if marks else waits, self.clear, marks)


Progress = TypeVar("Progress", bound=FilterProgress)


class ResumedFilter(Generic[Progress]):
    """A filter whose whole state is its progress, so that a copy of it is a snapshot."""

    def __init__(self, state: Progress) -> None:
        self._state = state

    def snapshot(self) -> Progress:
        """A copy of the state."""
        return deepcopy(self._state)

    def rollback(self, state: object) -> None:
        """Go on from a snapshot."""
        assert isinstance(state, type(self._state))
        self._state = deepcopy(state)
