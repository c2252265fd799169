"""Every recorded random number that decided something, with its purpose, its place, and the key's number.

Drafted tokens that were never examined are left out: they decided nothing, and the
next step draws the same number again for the same position.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.core.trees import depths, orders
from engine.core.types import Protocol, Role
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import Purpose, Randomness

NAN = float("nan")
REJECTION = (Protocol.CHAIN, Protocol.TREE, Protocol.BLOCK)
"""Protocols whose verifiers draw numbers."""


@dataclass(frozen=True, slots=True)
class RecordedNumber:
    """One number. `value` is NaN if the rule draws a number here and the record lacks it."""

    step: int
    purpose: Purpose
    position: int
    value: float
    key: float

    @property
    def title(self) -> str:
        """Name of the number in reports."""
        return f"the {self.purpose.name.lower()} number at position {self.position}"


@dataclass(frozen=True, slots=True)
class NumberPair:
    """Two numbers in the order of their draws: given `first`, `second` must be uniform."""

    name: str
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class RequestNumbers:
    """The numbers of one request's record, in the order of the decisions."""

    listed: tuple[RecordedNumber, ...]
    pairs: tuple[NumberPair, ...]


@dataclass(frozen=True, slots=True)
class _TestedNode:
    """One examined node: its numbers and its acceptance probability (NaN if the rule has none per node)."""

    depth: int
    accepted: bool
    draft: RecordedNumber | None
    accept: RecordedNumber | None
    chance: float


def numbers_of(trace: Trace) -> RequestNumbers:
    """Collect one request's numbers; the trace is well-formed and at level `scalars` or above."""
    whole = Randomness(trace.header.sampling.seed, trace.header.stream)
    listed: list[RecordedNumber] = []
    pairs: list[NumberPair] = []
    last: RecordedNumber | None = None
    for view in steps_of(trace):
        randomness = whole.of_step(view.position) if trace.header.protocol is Protocol.BLOCK else whole
        tried = list(_tried(trace, view, randomness))
        final = _final(trace, view, randomness)
        for item in tried:
            listed.extend(number for number in (item.draft, item.accept) if number is not None)
            pairs.extend(_paired("draft, accept", item.draft, item.accept))
            if item.accept is not None:
                pairs.extend(_paired("accept, next accept", last, item.accept))
                last = item.accept
        if final is not None:
            listed.append(final)
            pairs.extend(_before_final(tried, final))
    return RequestNumbers(tuple(listed), tuple(pairs))


def _paired(name: str, first: RecordedNumber | None, second: RecordedNumber | None) -> Iterator[NumberPair]:
    if first is not None and second is not None and not math.isnan(first.value + second.value):
        yield NumberPair(name, first.value, second.value)


def _before_final(tried: list[_TestedNode], final: RecordedNumber) -> Iterator[NumberPair]:
    """Pairs of a step's final number with those of the drafted token before it."""
    if not tried or math.isnan(final.value):
        return
    before = tried[-1]
    purpose = final.purpose.name.lower()
    if before.accept is not None and not math.isnan(before.accept.value):
        yield NumberPair(f"accept, {purpose}", _rescaled(before), final.value)
    yield from _paired(f"draft, {purpose}", before.draft, final)


def _rescaled(tried: _TestedNode) -> float:
    """The acceptance number rescaled within its part of [0, 1): uniform given the decision."""
    assert tried.accept is not None
    u, chance = tried.accept.value, tried.chance
    if math.isnan(chance) or not 0.0 < chance < 1.0:
        return u
    inside = u / chance if tried.accepted else (u - chance) / (1.0 - chance)
    return inside if 0.0 <= inside <= 1.0 else u


def _tried(trace: Trace, view: StepView, randomness: Randomness) -> Iterator[_TestedNode]:
    tree = view.tree
    depth, order = depths(tree), orders(tree)
    rejects = trace.header.protocol in REJECTION
    for x in range(view.examined.start, view.examined.stop):
        node = int(trace.examined_node[x])
        position = view.position + depth[node] - 1
        sibling = sum(parent == tree.parents[node] for parent in tree.parents[:node])
        own = float(trace.node_uniform[view.nodes][node])
        drawn = not math.isnan(own)
        draft_key = randomness.uniform(position, Purpose.DRAFT, order[node]) if drawn else NAN
        accept_key = randomness.uniform(position, Purpose.ACCEPT, sibling) if rejects else NAN
        u, p, q = (float(column[x]) for column in (trace.examined_uniform, trace.examined_p, trace.examined_q))
        by_node = trace.header.protocol in (Protocol.CHAIN, Protocol.TREE) and q > 0
        yield _TestedNode(
            depth=depth[node],
            accepted=bool(trace.examined_accepted[x]),
            draft=RecordedNumber(view.index, Purpose.DRAFT, position, own, draft_key) if drawn else None,
            accept=RecordedNumber(view.index, Purpose.ACCEPT, position, u, accept_key) if rejects else None,
            chance=min(1.0, p / q) if by_node else NAN,
        )


def _final(trace: Trace, view: StepView, randomness: Randomness) -> RecordedNumber | None:
    """The number of the recovered, bonus or plain token, if the rule draws one."""
    at = view.emitted.stop - 1
    role = Role(int(trace.role[at]))
    if role is Role.ACCEPTED or trace.header.protocol not in REJECTION:
        return None
    purpose = Purpose.RESIDUAL if role is Role.RECOVERED else Purpose.BONUS
    position = view.position + at - view.emitted.start
    return RecordedNumber(
        view.index, purpose, position, float(trace.uniform[at]), randomness.uniform(position, purpose)
    )
