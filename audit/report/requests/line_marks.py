"""What happened on the line of a request: where its grammar, its tool calls and its filters acted, by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from audit.evidence.records import RequestRecord
from audit.text.unsafe import shortened

NAME: Final = 60
"""Most characters of a name on the line."""


@dataclass(frozen=True, slots=True)
class LineMark:
    """An event before a token: `kind` is grammar, tool, filter or error."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class LineMarks:
    """The events before each emitted token, and those behind the last."""

    before: tuple[tuple[LineMark, ...], ...]
    end: tuple[LineMark, ...]


def marks_of(record: RequestRecord) -> LineMarks:
    """The events of a request by token; one at a place that the record lacks stands at the end."""
    count = len(record.trace.token)
    before: list[tuple[LineMark, ...]] = [()] * count
    end: tuple[LineMark, ...] = ()
    for at, mark in _placed(record):
        if 0 <= at < count:
            before[at] = (*before[at], mark)
        else:
            end = (*end, mark)
    return LineMarks(tuple(before), end)


def _placed(record: RequestRecord) -> Iterator[tuple[int, LineMark]]:
    facts = record.trace.header.facts
    count = len(record.trace.token)
    refused = facts.get("constraint", {}).get("refused")
    if refused is not None:
        yield int(refused), LineMark("grammar", "the grammar forbids the next token")
    tools = facts.get("tools", {})
    for call, span in zip(tools.get("calls", []), tools.get("spans", []), strict=False):
        name = shortened(str(call.get("name")), NAME)
        yield int(span[0]), LineMark("tool", f"tool call {name} begins")
        yield int(span[1]), LineMark("tool", f"tool call {name} ends")
    for decision in facts.get("stream", {}).get("decisions", []):
        words = shortened(f"filter {decision['filter']}: {decision['action']} {decision['category']}", NAME)
        yield (
            int(decision["token"]),
            LineMark("filter", f"{words}, characters {decision['start']} to {decision['end']}"),
        )
    if error := facts.get("error"):
        yield count, LineMark("error", shortened(f"error: {error['kind']}", NAME))
