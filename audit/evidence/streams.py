"""A request's text as it left, and what filters decided, from its record.

The engine records both at the commit of each step; apart from them, and after the end, it decodes every number of the
response's tokens again (`ends`, `decoded`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.record.effective import Effective
from engine.record.trace import TraceHeader
from engine.stream.fresh_reading import FreshReading, reading_of
from engine.stream.interface import ENDING, Action
from engine.stream.redaction import REDACTED, Span
from engine.stream.text_stream import Decided, TextChunk

STREAM: Final = "stream"


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """One request's stream.

    read: characters of the text that the filters saw.
    filters: the identity of each filter.
    decoded: what all tokens decode to.
    ends: [E] characters, without an incomplete one at the end, that the first 1, 2, ... tokens decode to.
    held: characters for which filters still waited when the response ended; None if the record does not say it.
    again: the engine's second reading by fresh filters; None where a check can make it.
    """

    chunks: tuple[TextChunk, ...]
    decisions: tuple[Decided, ...]
    read: int
    filters: tuple[Mapping[str, Any], ...]
    decoded: str
    ends: tuple[int, ...]
    held: int | None = None
    again: FreshReading | None = None

    @property
    def text(self) -> str:
        """Everything that left."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def end(self) -> int:
        """The character at which the response ends: where a filter ended it, else where the filters' text ends."""
        cuts = (decision.start for decision in self.decisions if decision.action in ENDING and decision.token >= 0)
        return min((self.read, *cuts))

    @property
    def redactions(self) -> tuple[Span, ...]:
        """The characters that filters removed."""
        return tuple(
            Span(decision.start, decision.end) for decision in self.decisions if decision.action is Action.REDACT
        )


def declared_filters(effective: Effective) -> list[Mapping[str, Any]]:
    """The filters of an effective configuration, with their rules."""
    stream = effective.facts.get(STREAM)
    listed = stream.get("filters") if isinstance(stream, Mapping) else None
    return [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, Sequence) else []


def stream_of(header: TraceHeader) -> RecordedStream | None:
    """The stream in a record's header; None if it has none, or a damaged one."""
    facts = header.facts.get(STREAM)
    try:
        return None if facts is None else _read(facts, header.facts)
    except (KeyError, TypeError, ValueError):
        return None


def _read(facts: Mapping[str, Any], beside: Mapping[str, Any]) -> RecordedStream:
    reading = reading_of(facts)
    return RecordedStream(
        chunks=reading.chunks,
        decisions=reading.decisions,
        read=int(facts["read"]),
        filters=tuple(dict(fact) for fact in facts["filters"]),
        decoded=str(beside["decoded"]),
        ends=tuple(map(int, beside["ends"])),
        held=int(facts["held"]) if "held" in facts else None,
        again=reading_of(facts["again"]) if "again" in facts else None,
    )


def needs(raw: str, spans: tuple[Span, ...]) -> list[int]:
    """For each character that leaves of `raw`, the number of characters of `raw` that must be there before it may.

    A redacted run needs its first character only: what leaves in its place says nothing about the others.
    """
    result: list[int] = []
    inside = False
    for at in range(len(raw)):
        hidden = any(span.start <= at < span.end for span in spans)
        if not hidden:
            result.append(at + 1)
        elif not inside:
            result += [at + 1] * len(REDACTED)
        inside = hidden
    return result
