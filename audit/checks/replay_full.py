"""Recompute every decision of a trace that holds its rows, and name what differs.

Needs level `full`. Follows the recorded path also where it is wrong, so that
one fault does not hide the next. Knows nothing about verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from audit.checks.replay_rules import NO_NODE, RULES, Offer, Place, Ruling
from audit.checks.replay_structure import Fault
from engine.rng import Purpose, Randomness
from engine.sampling import gumbel_argmax, inverse_cdf, transform
from engine.trace import StepView, Trace, steps_of
from engine.types import Examined, QKind, Role

TOLERANCE = 1e-9
"""Absolute or relative difference of float64 numbers that count as equal."""
_LEFT = -2
"""The place below no node: the walk has left the tree."""


@dataclass(slots=True)
class Tally:
    """Decisions counted while replaying: all, those recomputed, and what differed."""

    decisions: int = 0
    recomputed: int = 0
    faults: list[Fault] = field(default_factory=list)

    def decision(self, recomputed: bool, faults: list[Fault]) -> None:
        """Count one decision; several differences in it are one violation."""
        self.decisions += 1
        self.recomputed += recomputed
        if faults:
            self.faults.append(Fault(faults[0].step, "; ".join(each.message for each in faults)))


def replay_full(trace: Trace) -> Tally:
    """Recompute a trace; its columns are in shape and its rows are there."""
    tally = Tally()
    randomness = Randomness(trace.header.sampling.seed, trace.header.stream)
    history = [*trace.header.prompt, *trace.tokens]
    for view in steps_of(trace):
        _Step(trace, view, history, randomness, tally).run()
    return tally


@dataclass(frozen=True, slots=True)
class _Step:
    """One step while it is replayed."""

    trace: Trace
    view: StepView
    history: list[int]
    """Prompt and every token of the generation."""
    randomness: Randomness
    tally: Tally

    def run(self) -> None:
        """Decide every emitted token of the step once more."""
        for node in range(self.view.nodes.stop - self.view.nodes.start):
            self._replay_draw(node)
        node, left = NO_NODE, list(range(self.view.examined.start, self.view.examined.stop))
        rejection = math.nan
        for depth, at in enumerate(range(self.view.emitted.start, self.view.emitted.stop)):
            place = self._place(at, depth, node)
            try:
                ruling = RULES[self.trace.header.protocol](place, self.randomness)
            except LookupError as error:
                self.tally.decision(True, [self._fault(str(error))])
                return
            self._compare_tried(ruling, left)
            self.tally.decision(True, list(self._token_faults(at, place, ruling)))
            rejection = ruling.residual_mass
            node = self._next_node(at, place)
        if left:
            self.tally.decision(True, [self._fault(f"{len(left)} drafted tokens were examined that the rule leaves")])
        recorded = float(self.trace.residual_mass[self.view.index])
        if not _same(recorded, rejection):
            self.tally.decision(True, [self._differs("residual mass", recorded, rejection)])

    def _fault(self, message: str) -> Fault:
        return Fault(self.view.index, message)

    def _differs(self, what: str, recorded: float, computed: float) -> Fault:
        return self._fault(f"{what} recorded {recorded:.10g}, replay gives {computed:.10g}")

    def _place(self, at: int, depth: int, node: int) -> Place:
        header = self.trace.header
        start = len(header.prompt)
        row = transform(self.trace.logits[at], self.history[: start + at], start, header.sampling, header.eos_ids)
        offers = tuple(self._offers(node))
        empty = self.view.nodes.start == self.view.nodes.stop
        return Place(self.view.position + depth, row, offers, empty)

    def _offers(self, node: int) -> Iterator[Offer]:
        tokens, parents = self.trace.node_token[self.view.nodes], self.trace.node_parent[self.view.nodes]
        for child in np.flatnonzero(parents == node):
            x = self._examined_index(int(child))
            unknown = x is None or self.view.q_kind is QKind.NONE
            yield Offer(int(child), int(tokens[child]), None if unknown else self.trace.q_rows[x])

    def _examined_index(self, node: int) -> int | None:
        found = np.flatnonzero(self.trace.examined_node[self.view.examined] == node)
        return self.view.examined.start + int(found[0]) if len(found) else None

    def _compare_tried(self, ruling: Ruling, left: list[int]) -> None:
        """Each drafted token that the rule looks at, against the next recorded one."""
        for tried in ruling.tried:
            if not left:
                self.tally.decision(True, [self._fault(f"drafted node {tried.node} was never examined")])
                continue
            self.tally.decision(True, list(self._tried_faults(tried, left.pop(0))))

    def _tried_faults(self, tried: Examined, x: int) -> Iterator[Fault]:
        trace = self.trace
        if int(trace.examined_node[x]) != tried.node:
            yield self._fault(f"node {int(trace.examined_node[x])} was examined where the rule examines {tried.node}")
            return
        name = f"drafted token {int(trace.node_token[self.view.nodes][tried.node])}"
        for what, recorded, computed in (
            (f"p of {name}", trace.examined_p[x], tried.p),
            (f"q of {name}", trace.examined_q[x], tried.q),
        ):
            if not _same(float(recorded), computed):
                yield self._differs(what, float(recorded), computed)
        recorded = float(trace.examined_uniform[x])
        if not _identical(recorded, tried.uniform):
            yield self._fault(f"acceptance number of {name} recorded {recorded:.10g}, key gives {tried.uniform:.10g}")
        if bool(trace.examined_accepted[x]) != tried.accepted:
            was, rule = ("accepted", "rejects") if not tried.accepted else ("rejected", "accepts")
            yield self._fault(f"{name} was {was}, the rule {rule} it (u {tried.uniform:.6g}, p {tried.p:.6g})")

    def _token_faults(self, at: int, place: Place, ruling: Ruling) -> Iterator[Fault]:
        trace = self.trace
        token, role = int(trace.token[at]), Role(int(trace.role[at]))
        where = f"position {place.position}"
        if token != ruling.token:
            yield self._fault(
                f"{role.name.lower()} token at {where} recorded {token}, the rule gives {ruling.token} "
                f"({ruling.role.name.lower()})"
            )
        elif role is not ruling.role:
            yield self._fault(
                f"role at {where} recorded {role.name.lower()}, the rule gives {ruling.role.name.lower()}"
            )
        if not _same(float(trace.p[at]), float(place.row.p[token])):
            yield self._differs(f"p of token {token} at {where}", float(trace.p[at]), float(place.row.p[token]))
        if not _identical(float(trace.uniform[at]), ruling.uniform):
            yield self._fault(
                f"number of the {role.name.lower()} token at {where} recorded {float(trace.uniform[at]):.10g}, "
                f"key gives {ruling.uniform:.10g}"
            )

    def _next_node(self, at: int, place: Place) -> int:
        """The recorded path: the drafted child that carries the token, or none."""
        kept = [offer.node for offer in place.offers if offer.token == int(self.trace.token[at])]
        accepted = Role(int(self.trace.role[at])) is Role.ACCEPTED
        return kept[0] if kept and accepted else _LEFT

    def _replay_draw(self, node: int) -> None:
        """A drafted token that was drawn from a kept q row, and its number."""
        x = self._examined_index(node)
        if x is None or self.view.q_kind is not QKind.FULL:
            return
        q, token = self.trace.q_rows[x], int(self.trace.node_token[self.view.nodes][node])
        depth = self._depth(node)
        if depth is None:
            self.tally.decision(False, [])
            return
        self.tally.decision(*self._draw_outcome(q, token, node, self.view.position + depth))

    def _draw_outcome(self, q: np.ndarray, token: int, node: int, position: int) -> tuple[bool, list[Fault]]:
        """Whether the draw could be recomputed, and what differs."""
        if not abs(float(q.sum()) - 1.0) <= TOLERANCE or np.any(q < 0):
            return True, [self._fault(f"q of drafted node {node} is no distribution, it sums to {float(q.sum()):.10g}")]
        recorded = float(self.trace.node_uniform[self.view.nodes][node])
        if self.trace.header.coupled_draft:
            drawn = gumbel_argmax(q, self.randomness.gumbel(position, len(q)))
        elif math.isnan(recorded):
            return False, []
        else:
            u = self.randomness.uniform(position, Purpose.DRAFT)
            if u != recorded:
                message = f"draft number at position {position} recorded {recorded:.10g}, key gives {u:.10g}"
                return True, [self._fault(message)]
            drawn = inverse_cdf(q, u)
        if drawn != token:
            return True, [self._fault(f"drafted token {token} at position {position}, its q and number give {drawn}")]
        return True, []

    def _depth(self, node: int) -> int | None:
        """Distance below the root's child in a chain; None where a node has siblings."""
        parents = [int(parent) for parent in self.trace.node_parent[self.view.nodes]]
        return node if parents == list(range(-1, len(parents) - 1)) else None


def _identical(recorded: float, computed: float) -> bool:
    """Random numbers are equal to the last bit or not the same numbers."""
    return recorded == computed or (math.isnan(recorded) and math.isnan(computed))


def _same(recorded: float, computed: float) -> bool:
    return _identical(recorded, computed) or math.isclose(recorded, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
