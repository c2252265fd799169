"""Recompute every decision of a trace with recorded rows, and report the differences.

The trace must be at level `full`. The replay follows the recorded path even where
it is wrong, so that one fault does not hide the next.

The block rule is implemented a second time, from its definition. One decision keeps a prefix of the draft, so the
replay needs every row of the step: the rows that decided emitted tokens and the record's spare rows. This module does
not use the engine's verifier. If a stop cuts the emitted tokens short, the kept prefix must be at least as long as the
emitted part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from audit.checks.replay.rules import NAN, RULES, DecisionPlace, OfferedToken, Ruling
from audit.evidence.decisions import NO_NODE, deciding_row
from audit.evidence.structure import Violation
from audit.evidence.tally import TOLERANCE, Tally, identical, same
from engine.core.trees import depths, orders
from engine.core.types import Examined, Floats, Mask, Protocol, QKind, Role
from engine.record.mask_bits import unpacked
from engine.record.trace import Rows, StepView, Trace, steps_of
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import gumbel_argmax, inverse_cdf, transform

_LEFT = -2
"""The place below no node: the walk has left the tree."""


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One step: gamma drafted tokens, their q [gamma, V], and p [gamma + 1, V] after each prefix."""

    position: int
    tokens: Sequence[int]
    q: Floats
    p: Floats


@dataclass(frozen=True, slots=True)
class BlockRuling:
    """Decision of the rule: the number of kept tokens, and the token after them."""

    kept: int
    numbers: tuple[float, ...]
    """The acceptance numbers of the gamma places."""
    token: int
    role: Role
    uniform: float
    residual_mass: float


def rule_block(block: BlockStep, randomness: Randomness) -> BlockRuling:
    """Keep the longest prefix i with u_i (R_i + 1 - P_i) < R_i; the whole draft if u_gamma < P_gamma."""
    gamma = len(block.tokens)
    numbers = tuple(randomness.uniform(block.position + i, Purpose.ACCEPT) for i in range(gamma))
    weights = _weights(block)
    kept = 0
    for i in range(1, gamma + 1):
        over = weights[i] if i == gamma else float(_left(block, weights, i).sum())
        total = 1.0 if i == gamma else over + 1.0 - weights[i]
        if numbers[i - 1] * total < over:
            kept = i
    whole = kept == gamma
    left = block.p[gamma] if whole else _left(block, weights, kept)
    mass = float(left.sum())
    u = randomness.uniform(block.position + kept, Purpose.BONUS if whole else Purpose.RESIDUAL)
    role = Role.RECOVERED if not whole else Role.BONUS if gamma else Role.PLAIN
    token = inverse_cdf(left if mass > 0 else block.p[kept], u)
    return BlockRuling(kept, numbers, token, role, u, NAN if whole else mass)


def _weights(block: BlockStep) -> list[float]:
    """P_0 = 1, P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i)); 1 for a draft that its own q excludes."""
    result = [1.0]
    for i, token in enumerate(block.tokens):
        p, q = float(block.p[i, token]), float(block.q[i, token])
        result.append(min(1.0, result[-1] * p / q) if q else 1.0)
    return result


def _left(block: BlockStep, weights: list[float], i: int) -> Floats:
    return np.asarray(np.maximum(weights[i] * block.p[i] - block.q[i], 0.0))


def spare_rows(trace: Trace) -> Iterator[Rows]:
    """Rows of each step that decided no emitted token; empty except under the block rule."""
    start = 0
    for view in steps_of(trace):
        joint = trace.header.protocol is Protocol.BLOCK
        count = 1 + int(trace.n_drafted[view.index]) - int(trace.n_emitted[view.index]) if joint else 0
        yield trace.spare_logits[start : start + count]
        start += count


def row_masks(trace: Trace) -> Iterator[tuple[Mask | None, ...]]:
    """The grammar's masks on all rows of each step, those of emitted tokens first."""
    start = 0
    for view, spare in zip(steps_of(trace), spare_rows(trace), strict=True):
        emitted = (trace.allowed(at) for at in range(view.emitted.start, view.emitted.stop))
        bits = trace.spare_mask_bits[start : start + len(spare)]
        unread = (unpacked(bit, trace.header.vocabulary) for bit in bits) if len(bits) else (None for _ in spare)
        yield (*emitted, *unread)
        start += len(spare)


def block_faults(block: BlockStep | None, trace: Trace, view: StepView, randomness: Randomness) -> Iterator[str]:
    """Differences between a recorded step and the rule."""
    if block is None:
        yield "the block rule examines every drafted token in order, the record does not have them so"
        return
    ruling = rule_block(block, randomness)
    if not all(map(identical, trace.examined_uniform[view.examined].tolist(), ruling.numbers)):
        yield "the acceptance numbers are not those of the key"
    for i, token in enumerate(block.tokens):
        x = view.examined.start + i
        for what, recorded, computed in (
            ("p", trace.examined_p[x], block.p[i]),
            ("q", trace.examined_q[x], block.q[i]),
        ):
            if not same(float(recorded), float(computed[token])):
                yield f"{what} of drafted token {token} recorded {recorded:.10g}, replay gives {computed[token]:.10g}"
    yield from _outcome_faults(block, ruling, trace, view)


def _outcome_faults(block: BlockStep, ruling: BlockRuling, trace: Trace, view: StepView) -> Iterator[str]:
    emitted = view.emitted.stop - view.emitted.start
    accepted = int((trace.role[view.emitted] == Role.ACCEPTED).sum())
    for i in range(emitted):
        row, at = block.p[i], view.emitted.start + i
        if not same(float(trace.p[at]), float(row[trace.token[at]])):
            yield f"p of token {trace.token[at]} recorded {trace.p[at]:.10g}, replay gives {row[trace.token[at]]:.10g}"
    if accepted == emitted:
        # a stop cut the step: the record lacks the rest
        if view.index != trace.steps - 1 or ruling.kept < accepted:
            yield f"{accepted} drafted tokens were kept, the rule keeps {ruling.kept}"
        return
    if accepted != ruling.kept:
        yield f"{accepted} drafted tokens were kept, the rule keeps {ruling.kept}"
        return
    at = view.emitted.stop - 1
    if int(trace.token[at]) != ruling.token:
        yield f"the last token is {trace.token[at]}, the rule gives {ruling.token}"
    role = Role(int(trace.role[at]))
    if role is not ruling.role:
        yield f"the last token's role is {role.name.lower()}, the rule's {ruling.role.name.lower()}"
    if not identical(float(trace.uniform[at]), ruling.uniform):
        yield f"the last token's number is {trace.uniform[at]:.10g}, the key gives {ruling.uniform:.10g}"
    if not same(float(trace.residual_mass[view.index]), ruling.residual_mass):
        yield f"residual mass recorded {trace.residual_mass[view.index]:.10g}, replay gives {ruling.residual_mass:.10g}"


def lacks_p(trace: Trace) -> bool:
    """True if no token has a p on record, as with an engine that reports no probabilities of its own."""
    return bool(len(trace.p) and np.isnan(trace.p).all() and np.isnan(trace.examined_p).all())


def replay_full(trace: Trace) -> Tally:
    """Recompute a well-formed trace with rows; p is compared where the record has one."""
    tally, reported = Tally(), not lacks_p(trace)
    randomness = Randomness(trace.header.sampling.seed, trace.header.stream)
    history = [*trace.header.prompt, *trace.tokens]
    whole = trace.header.protocol is Protocol.BLOCK
    for view, spare, masks in zip(steps_of(trace), spare_rows(trace), row_masks(trace), strict=True):
        numbers = randomness.of_step(view.position) if whole else randomness
        _ReplayStep(trace, view, spare, masks, history, numbers, tally, reported).run()
    return tally


@dataclass(frozen=True, slots=True)
class DraftedDraw:
    """A drafted token and the q it was drawn from; `order` distinguishes nodes at the same position."""

    q: Floats
    token: int
    node: int
    position: int
    order: int


@dataclass(frozen=True, slots=True)
class _ReplayStep:
    """State of one step during the replay."""

    trace: Trace
    view: StepView
    spare: Rows
    """[R, V] rows that decided no emitted token."""
    masks: tuple[Mask | None, ...]
    """The grammar's masks on the rows of emitted tokens and on the spare ones."""
    history: list[int]
    """Prompt and every token of the generation."""
    randomness: Randomness
    tally: Tally
    reported: bool
    """The record has p."""

    def run(self) -> None:
        """Recompute the decision of every emitted token of the step."""
        for node in range(self.view.nodes.stop - self.view.nodes.start):
            self._replay_draw(node)
        if self.trace.header.protocol is Protocol.BLOCK:
            # one decision per step
            result = block_faults(self._block(), self.trace, self.view, self.randomness)
            self.tally.decision(True, [self._fault(message) for message in result])
        else:
            self._walk()

    def _block(self) -> BlockStep | None:
        """The step's rows after each drafted prefix; None if a drafted token has no q."""
        view, header = self.view, self.trace.header
        tokens = [int(token) for token in self.trace.node_token[view.nodes]]
        if self.trace.examined_node[view.examined].tolist() != list(range(len(tokens))):
            return None
        before, start = self.history[: view.position], len(header.prompt)
        rows = [
            transform(row, [*before, *tokens[:i]], start, header.sampling, header.eos_ids, mask).p
            for i, (row, mask) in enumerate(
                zip([*self.trace.logits[view.emitted], *self.spare], self.masks, strict=True)
            )
        ]
        return BlockStep(view.position, tokens, self.trace.q_rows[view.examined], np.stack(rows))

    def _walk(self) -> None:
        """The other rules: one decision per place."""
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
        if not same(recorded, rejection):
            self.tally.decision(True, [self._differs("residual mass", recorded, rejection)])

    def _fault(self, message: str) -> Violation:
        return Violation(self.view.index, message)

    def _differs(self, what: str, recorded: float, computed: float) -> Violation:
        return self._fault(f"{what} recorded {recorded:.10g}, replay gives {computed:.10g}")

    def _place(self, at: int, depth: int, node: int) -> DecisionPlace:
        row = deciding_row(self.trace, at)
        offers = tuple(self._offers(node))
        empty = self.view.nodes.start == self.view.nodes.stop
        return DecisionPlace(self.view.position + depth, row, offers, empty)

    def _offers(self, node: int) -> Iterator[OfferedToken]:
        tokens, parents = self.trace.node_token[self.view.nodes], self.trace.node_parent[self.view.nodes]
        for child in np.flatnonzero(parents == node):
            x = self._examined_index(int(child))
            unknown = x is None or self.view.q_kind is QKind.NONE
            yield OfferedToken(int(child), int(tokens[child]), None if unknown else self.trace.q_rows[x])

    def _examined_index(self, node: int) -> int | None:
        result = np.flatnonzero(self.trace.examined_node[self.view.examined] == node)
        return self.view.examined.start + int(result[0]) if len(result) else None

    def _compare_tried(self, ruling: Ruling, left: list[int]) -> None:
        """Compare each drafted token that the rule examines with the next recorded one."""
        for tried in ruling.tried:
            if not left:
                self.tally.decision(True, [self._fault(f"drafted node {tried.node} was never examined")])
                continue
            self.tally.decision(True, list(self._tried_faults(tried, left.pop(0))))

    def _tried_faults(self, tried: Examined, x: int) -> Iterator[Violation]:
        trace = self.trace
        if int(trace.examined_node[x]) != tried.node:
            yield self._fault(f"node {int(trace.examined_node[x])} was examined where the rule examines {tried.node}")
            return
        name = f"drafted token {int(trace.node_token[self.view.nodes][tried.node])}"
        yield from self._p_faults(name, float(trace.examined_p[x]), tried.p)
        if not same(float(trace.examined_q[x]), tried.q):
            yield self._differs(f"q of {name}", float(trace.examined_q[x]), tried.q)
        recorded = float(trace.examined_uniform[x])
        if not identical(recorded, tried.uniform):
            yield self._fault(f"acceptance number of {name} recorded {recorded:.10g}, key gives {tried.uniform:.10g}")
        if bool(trace.examined_accepted[x]) != tried.accepted:
            was, rule = ("accepted", "rejects") if not tried.accepted else ("rejected", "accepts")
            yield self._fault(f"{name} was {was}, the rule {rule} it (u {tried.uniform:.6g}, p {tried.p:.6g})")

    def _p_faults(self, name: str, recorded: float, computed: float) -> Iterator[Violation]:
        if self.reported and not same(recorded, computed):
            yield self._differs(f"p of {name}", recorded, computed)

    def _token_faults(self, at: int, place: DecisionPlace, ruling: Ruling) -> Iterator[Violation]:
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
        yield from self._p_faults(f"token {token} at {where}", float(trace.p[at]), float(place.row.p[token]))
        if not identical(float(trace.uniform[at]), ruling.uniform):
            yield self._fault(
                f"number of the {role.name.lower()} token at {where} recorded {float(trace.uniform[at]):.10g}, "
                f"key gives {ruling.uniform:.10g}"
            )

    def _next_node(self, at: int, place: DecisionPlace) -> int:
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
        tree = self.view.tree
        draw = DraftedDraw(q, token, node, self.view.position + depths(tree)[node] - 1, orders(tree)[node])
        self.tally.decision(*self._draw_outcome(draw))

    def _draw_outcome(self, made: DraftedDraw) -> tuple[bool, list[Violation]]:
        """Whether the draw could be recomputed, and the differences."""
        q, node, position = made.q, made.node, made.position
        if not abs(float(q.sum()) - 1.0) <= TOLERANCE or np.any(q < 0):
            return True, [self._fault(f"q of drafted node {node} is no distribution, it sums to {float(q.sum()):.10g}")]
        recorded = float(self.trace.node_uniform[self.view.nodes][node])
        if self.trace.header.coupled_draft:
            drawn = gumbel_argmax(q, self.randomness.gumbel(position, len(q)))
        elif math.isnan(recorded):
            return False, []
        else:
            u = self.randomness.uniform(position, Purpose.DRAFT, made.order)
            if u != recorded:
                message = f"draft number at position {position} recorded {recorded:.10g}, key gives {u:.10g}"
                return True, [self._fault(message)]
            drawn = inverse_cdf(q, u)
        if drawn != made.token:
            return True, [
                self._fault(f"drafted token {made.token} at position {position}, its q and number give {drawn}")
            ]
        return True, []
