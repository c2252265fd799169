"""A request's stream made again from its record: by fresh filters, or by those with which the engine read again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from audit.evidence.records import ArmRecord, RequestRecord
from audit.evidence.streams import RecordedStream, declared_filters
from engine.core.errors import EngineError
from engine.sampling.stopping import StopRule
from engine.stream.fresh_reading import MODELS, FreshReading, read_afresh
from engine.stream.interface import FilterSpec, filter_spec
from engine.stream.loading import load_filter
from engine.stream.text_stream import StreamRules, TextChunk

QUOTED: Final = 20
"""Characters of each text in a finding."""


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
    reading = stream.again if fresh.reason else _read(request, stream, fresh.rules)
    if reading is None:
        return None
    return FreshReading(reading.decisions, _by_step(reading.chunks, request))


def _read(request: RequestRecord, stream: RecordedStream, rules: StreamRules) -> FreshReading | None:
    header, count = request.trace.header, len(stream.ends)
    if count != len(request.tokens):
        return None

    def decode(tokens: Sequence[int]) -> str:
        return stream.decoded if len(tokens) == count else stream.decoded[: stream.ends[len(tokens) - 1]]

    return read_afresh(rules, StopRule(header.sampling, header.eos_ids, decode), request.tokens, header.finish_reason)


def _by_step(chunks: Sequence[TextChunk], request: RequestRecord) -> tuple[TextChunk, ...]:
    """The chunks with the text of each step joined."""
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
    at = next((i for i, (a, b) in enumerate(zip(ours, again, strict=False)) if a != b), min(len(ours), len(again)))
    shown = [
        f"{side[at].text[:QUOTED]!r} after token {side[at].tokens}" if at < len(side) else "nothing"
        for side in (ours, again)
    ]
    return f"chunk {at} is {shown[0]}, the committed text lets {shown[1]} leave"
