"""One request as a page draws it: its text by steps, what was drafted and not kept, and the numbers of each token.

It holds the numbers of the record and derives none but probabilities from recorded scores. What the record does not
hold is None, and `lacking` says so in words.

What happened on the line of a request: where its grammar, its tool calls and its filters acted, by token.

The likeliest tokens of the row that decided a token come with p and q, where the record holds rows or cells.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import numpy as np

from audit.evidence.decisions import NO_NODE, deciding_row, places
from audit.evidence.records import RequestRecord
from audit.report.requests.choice import NamedFinding
from audit.report.requests.generation import REJECTED, UNREACHED, TokenLine, events, token_lines
from audit.report.requests.pieces import Pieces
from audit.text.unsafe import shortened
from engine.core.errors import InvalidRequest
from engine.core.types import QKind, RecordLevel, Role
from engine.record.columns import shape_fault
from engine.record.rows.lumping import PAD
from engine.record.trace import Trace

NAME: Final = 60
"""Most characters of a name on the line."""
MOST_ALTERNATIVES: Final = 5
"""Alternatives of a token."""
LONGEST_ALTERNATIVE: Final = 40
"""Most characters of the text of one."""
MOST_SCORES: Final = 8_000_000
"""Most scores of whole rows that are transformed for one record: 53 rows of a vocabulary of 150,000."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the likeliest tokens at a place; q is None where nothing was drawn from a row of q, or it is unknown."""

    token: int
    text: str | None
    p: float
    q: float | None


class Alternatives:
    """The alternatives of one record. Rows are transformed one by one, on request."""

    def __init__(self, trace: Trace, pieces: Pieces) -> None:
        self._trace = trace
        self._pieces = pieces
        level, fits = trace.header.level, shape_fault(trace) is None
        self._rows = fits and level is RecordLevel.FULL and len(trace.logits) > 0
        self._first = MOST_SCORES // max(1, trace.header.vocabulary)
        self._cells = fits and level is RecordLevel.TOPK and len(trace.cell_id) > 0

    @property
    def known(self) -> bool:
        """True if the record holds rows or cells."""
        return self._rows or self._cells

    @property
    def cut(self) -> int | None:
        """The number of tokens, the first ones, that have alternatives; None if all have."""
        return self._first if self._rows and self._first < len(self._trace.token) else None

    def at(self, index: int) -> tuple[Alternative, ...]:
        """Those of an emitted token, the likeliest first; empty without rows and cells."""
        if self._rows and index >= self._first:
            return ()
        try:
            chosen = self._of_row(index) if self._rows else self._of_cells(index) if self._cells else ()
        except InvalidRequest:
            return ()
        return tuple(chosen)

    def _of_row(self, index: int) -> Iterator[Alternative]:
        p = deciding_row(self._trace, index).p
        node = int(self._places.examined[index])
        drawn = self._places.kind[index] == QKind.FULL and node != NO_NODE and len(self._trace.q_rows) > 0
        q = self._trace.q_rows[node] if drawn else None
        yield from (self._alternative(token, p[token], None if q is None else q[token]) for token in _largest(p))

    def _of_cells(self, index: int) -> Iterator[Alternative]:
        trace = self._trace
        p = np.where(trace.cell_id[index] == PAD, 0.0, trace.cell_p[index])
        for cell in _largest(p):
            yield self._alternative(int(trace.cell_id[index][cell]), p[cell], trace.cell_q[index][cell])

    def _alternative(self, token: int, p: Any, q: Any) -> Alternative:
        text = None if self._pieces.text is None else shortened(self._pieces.text(token), LONGEST_ALTERNATIVE)
        return Alternative(token, text, float(p), None if q is None or math.isnan(q) else float(q))

    @cached_property
    def _places(self) -> Any:
        return places(self._trace)


def _largest(p: Any) -> Iterator[int]:
    """The places of the largest masses above 0, descending."""
    some = np.argpartition(-p, min(MOST_ALTERNATIVES, len(p) - 1))[:MOST_ALTERNATIVES]
    yield from (int(place) for place in some[np.argsort(-p[some], kind="stable")] if p[place] > 0)


@dataclass(frozen=True, slots=True)
class LineMark:
    """An event before a token: `kind` is grammar, tool, filter or error."""

    kind: str
    text: str


def marks_of(record: RequestRecord) -> Sequence[tuple[LineMark, ...]]:
    """The events before each emitted token and, last, those behind all; so is one at a place that the record lacks."""
    count = len(record.trace.token)
    marks: list[tuple[LineMark, ...]] = [()] * (count + 1)
    for at, mark in _placed(record):
        place = at if 0 <= at < count else count
        marks[place] = (*marks[place], mark)
    return marks


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


MOST_TOKENS: Final = 320
"""Most emitted tokens of a request that a page draws."""
MOST_NODES: Final = 64
"""Most drafted tokens of a step that a page draws."""
MOST_PROMPT: Final = 1_200
"""Most characters of a prompt that a page draws."""
MOST_PIECE: Final = 120
"""Most characters of a token's text."""
MOST_WORDS: Final = 600
"""Most characters of an event or a finding."""
MOST_LINES: Final = 24
"""Most events, and most findings, below an answer."""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A drafted or emitted token with its text, and for an emitted one what stands on the line before it.

    forced: the grammar leaves no other token. alternatives: the likeliest tokens of the row that decided it.
    """

    line: TokenLine
    text: str | None
    logprob: float | None = None
    forced: bool = False
    alternatives: tuple[Alternative, ...] = ()
    marks: tuple[LineMark, ...] = ()

    @property
    def style(self) -> str:
        """The role as one word of a stylesheet."""
        return self.line.role.replace(" ", "-")


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node of a step's tree with those drafted after it."""

    view: DrawnToken
    children: tuple[TreeNode, ...]


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """One step: the tokens that it emitted, and the drafted ones that it did not keep.

    tree: the first tokens of its draft, if any has a sibling; empty for a chain. cut: drafted tokens not drawn.
    """

    index: int
    emitted: tuple[DrawnToken, ...]
    dropped: tuple[DrawnToken, ...]
    tree: tuple[TreeNode, ...]
    cut: int

    @property
    def drafted(self) -> int:
        """Number of drafted tokens."""
        return len(self.dropped) + self.cut + sum(one.line.parent is not None for one in self.emitted)


@dataclass(frozen=True, slots=True)
class Explored:
    """A request.

    anchor: its name as part of an address. prompt: its text, None if not known. left_steps, left_tokens, left_events:
    what is not drawn. end: what stands behind the last token. lacking: what the record does not hold, a sentence each.
    """

    request: str
    anchor: str
    record: RequestRecord
    prompt: str | None
    steps: tuple[DrawnStep, ...]
    left_steps: int
    left_tokens: int
    end: tuple[LineMark, ...]
    events: tuple[str, ...]
    left_events: int
    findings: tuple[NamedFinding, ...]
    lacking: tuple[str, ...]

    @property
    def rule(self) -> str:
        """The verification rule."""
        return str(self.record.trace.header.protocol)


def anchor_of(request: str) -> str:
    """A request's name as part of an address: it holds no character of the name."""
    return f"request-{hashlib.sha256(request.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def explored(
    record: RequestRecord, pieces: Pieces, findings: Sequence[NamedFinding] = (), *, name: str | None = None
) -> Explored:
    """The drawing of one request, whose columns fit together, as the store ensures, with what checks found in it.

    `name` is ARM/CASE#SAMPLE in the store; by default the name in the record.
    """
    trace = record.trace
    marks, alternatives = marks_of(record), Alternatives(trace, pieces)
    numbers = iter(range(len(trace.token)))
    steps: list[DrawnStep] = []
    drawn = total = 0
    for index, group in groupby(token_lines(trace), key=lambda line: line.step):
        total += 1
        if drawn >= MOST_TOKENS:
            continue
        own = list(group)
        views = [_view(line, trace, numbers, marks, alternatives, pieces) for line in own]
        steps.append(_step(index, views))
        drawn += len(steps[-1].emitted)
    prompt, lines = _text(trace.header.prompt, pieces), list(events(trace.header.facts))
    request = record.request_id if name is None else name
    return Explored(
        request=request,
        anchor=anchor_of(request),
        record=record,
        prompt=None if prompt is None else shortened(prompt, MOST_PROMPT),
        steps=tuple(steps),
        left_steps=total - len(steps),
        left_tokens=len(trace.token) - drawn,
        end=marks[-1],
        events=tuple(shortened(text, MOST_WORDS) for text in lines[:MOST_LINES]),
        left_events=max(0, len(lines) - MOST_LINES),
        findings=tuple(replace(one, message=shortened(one.message, MOST_WORDS)) for one in findings),
        lacking=tuple(_lacking(trace, pieces, alternatives)),
    )


def _view(
    line: TokenLine,
    trace: Trace,
    numbers: Iterator[int],
    marks: Sequence[tuple[LineMark, ...]],
    alternatives: Alternatives,
    pieces: Pieces,
) -> DrawnToken:
    text = None if pieces.text is None else shortened(pieces.text(line.token), MOST_PIECE)
    if line.role in (REJECTED, UNREACHED):
        return DrawnToken(line, text)
    at = next(numbers)
    return DrawnToken(
        line=line,
        text=text,
        logprob=float(trace.logprob[at]) if at < len(trace.logprob) else None,
        forced=line.allowed == 1,
        alternatives=alternatives.at(at),
        marks=marks[at],
    )


def _step(index: int, views: Sequence[DrawnToken]) -> DrawnStep:
    emitted = tuple(view for view in views if view.line.role not in (REJECTED, UNREACHED))
    drafted = [view for view in views if view.line.parent is not None]
    dropped = [view for view in drafted if view.line.role in (REJECTED, UNREACHED)]
    branches = any(view.line.parent != place - 1 for place, view in enumerate(drafted))
    shown = drafted[:MOST_NODES]
    return DrawnStep(
        index=index,
        emitted=emitted,
        dropped=tuple(dropped[:MOST_NODES]),
        tree=_children(-1, shown) if branches else (),
        cut=max(0, len(dropped) - MOST_NODES),
    )


def _children(parent: int, drafted: Sequence[DrawnToken]) -> tuple[TreeNode, ...]:
    """The nodes after a node; every parent stands before its children, so what is cut off has no children here."""
    return tuple(
        TreeNode(view, _children(place, drafted)) for place, view in enumerate(drafted) if view.line.parent == parent
    )


def _text(tokens: Sequence[int], pieces: Pieces) -> str | None:
    return None if pieces.text is None else "".join(map(pieces.text, tokens))


def _lacking(trace: Trace, pieces: Pieces, alternatives: Alternatives) -> Iterator[str]:
    """Names the data that the record's columns lack."""
    level = trace.header.level
    if pieces.text is None:
        yield f"Texts of tokens are not known ({pieces.why}); their ids are shown."
    columns = {
        "p": trace.p,
        "random numbers": trace.uniform,
        "margins": trace.margin,
        "log-probabilities": trace.logprob,
    }
    missing = [name for name, column in columns.items() if not len(column)]
    if len(trace.node_token) and not len(trace.examined_q):
        missing.insert(1, "q")
    if missing:
        yield f"The record (level {level}) holds no {', no '.join(missing)}."
    if alternatives.cut is not None:
        yield f"Alternatives are drawn for the first {alternatives.cut} tokens, because its rows are long."
    if not alternatives.known:
        yield f"It holds no other tokens of the rows, because its level is {level}: alternatives need topk or full."
    if not len(trace.node_token) and any(trace.role == Role.ACCEPTED):
        yield "It holds accepted tokens without their drafts."
