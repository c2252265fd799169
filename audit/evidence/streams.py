"""A request's text as it left, and what filters decided, from its record.

The engine records both at the commit of each step; apart from them, and after the end, it decodes every number of the
response's tokens again (`ends`, `decoded`). From these the stream is made again, by fresh filters.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from audit.evidence.records import ArmRecord, RequestRecord
from engine.core.errors import EngineError
from engine.core.sequences import agreeing
from engine.record.effective import Effective
from engine.record.facts import is_whole
from engine.record.trace import TraceHeader
from engine.sampling.stopping import StopRule
from engine.stream.fresh_reading import MODELS, FreshReading, read_afresh, reading_of
from engine.stream.interface import ENDING, Action, FilterSpec, filter_spec
from engine.stream.loading import load_filter
from engine.stream.redaction import REDACTED, Span
from engine.stream.text_stream import Decided, StreamRules, TextChunk

STREAM: Final = "stream"
QUOTED: Final = 20
"""Characters of each text in a finding."""


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """One request's stream.

    read: characters of the text that the filters saw.
    filters: the identity of each filter.
    decoded: what all tokens decode to.
    ends: [E] characters, without an incomplete one at the end, that the first 1, 2, ... tokens decode to.
    held: characters for which filters still waited when the response ended.
    again: the engine's second reading by fresh filters; None where a check can make it.
    """

    chunks: tuple[TextChunk, ...]
    decisions: tuple[Decided, ...]
    read: int
    filters: tuple[Mapping[str, Any], ...]
    decoded: str
    ends: tuple[int, ...]
    held: int
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
    if not is_whole(facts["read"]):
        raise TypeError("the characters that were read are no whole number")
    return RecordedStream(
        chunks=reading.chunks,
        decisions=reading.decisions,
        read=facts["read"],
        filters=tuple(dict(fact) for fact in facts["filters"]),
        decoded=str(beside["decoded"]),
        ends=tuple(map(int, beside["ends"])),
        held=reading.held,
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


@dataclass(frozen=True, slots=True)
class FreshFilters:
    """The arm's filters made again, or why they cannot be: their rules are a model, or a package is missing."""

    rules: StreamRules = field(default_factory=StreamRules)
    reason: str = ""


def fresh_filters(arm: ArmRecord) -> FreshFilters:
    """The filters that can be made again from their rules.

    All must be there, because a filter that ends a response decides what the others see.
    """
    declared = declared_filters(arm.effective)
    models = [str(item["component"]) for item in declared if item.get("component") in MODELS]
    if models:
        return FreshFilters(reason=f"the rules of {models[0]} are a model")
    try:
        return FreshFilters(StreamRules(tuple(load_filter(_spec(item)) for item in declared)))
    except (EngineError, KeyError, TypeError, ValueError) as error:
        return FreshFilters(reason=str(error))


def _spec(mapping: Mapping[str, Any]) -> FilterSpec:
    return filter_spec(str(mapping["component"]), str(mapping["action"]), str(mapping["side"]), mapping["rules"])


def stream_again(request: RequestRecord, stream: RecordedStream, fresh: FreshFilters) -> FreshReading | None:
    """The decisions and chunks that follow from the committed text; None if nothing can make them again.

    The chunks are those that leave at the ends of the request's steps.
    """
    reading = stream.again if fresh.reason else _read_again(request, stream, fresh.rules)
    return None if reading is None else replace(reading, chunks=_by_step(reading.chunks, request))


def _read_again(request: RequestRecord, stream: RecordedStream, rules: StreamRules) -> FreshReading | None:
    header, count = request.trace.header, len(stream.ends)
    if count != len(request.tokens):
        return None

    def decode(tokens: Sequence[int]) -> str:
        return stream.decoded if len(tokens) == count else stream.decoded[: stream.ends[len(tokens) - 1]]

    return read_afresh(rules, StopRule(header.sampling, header.eos_ids, decode), request.tokens, header.finish_reason)


def _by_step(chunks: Sequence[TextChunk], request: RequestRecord) -> tuple[TextChunk, ...]:
    borders = np.cumsum(request.trace.n_emitted, dtype=np.int64).tolist()
    joined: dict[int, str] = {}
    for chunk in chunks:
        place = bisect_left(borders, chunk.tokens)
        end = borders[place] if place < len(borders) else chunk.tokens
        joined[end] = joined.get(end, "") + chunk.text
    return tuple(TextChunk(tokens, text) for tokens, text in joined.items())


def other_chunk(ours: Sequence[TextChunk], again: Sequence[TextChunk]) -> str | None:
    """The first chunk that does not leave as the committed text lets it, in words; None if all do."""
    if tuple(ours) == tuple(again):
        return None
    at = agreeing(ours, again)
    shown = [
        f"{side[at].text[:QUOTED]!r} after token {side[at].tokens}" if at < len(side) else "nothing"
        for side in (ours, again)
    ]
    return f"chunk {at} is {shown[0]}, the committed text lets {shown[1]} leave"
