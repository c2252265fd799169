"""Recompute the chain rule at level `topk` from the recorded masses of each draw.

A token drawn from a law by a number u is right if the law's mass before it, in id order, is at most u and its own mass
reaches beyond u. The recorder computed the masses from whole rows, which the record does not hold; if a token has a
cell, its mass must agree with the cell. Numbers come from the key. This module examines only the suspect steps of
`audit.checks.replay.columns`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from audit.checks.replay.columns import PURPOSES, ROUNDED, strange_steps
from audit.evidence.decisions import NO_NODE, Decisions, LumpedDecisions
from audit.evidence.structure import Violation
from audit.evidence.tally import TOLERANCE, Tally, identical, same
from engine.core.types import QKind, Role
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import Purpose, Randomness


def replay_masses(trace: Trace, made: Decisions) -> Tally:
    """Recompute a well-formed trace of the chain rule, given what its cells say."""
    assert made.lumped is not None
    replay = _Replay(trace, made, made.lumped, Randomness(trace.header.sampling.seed, trace.header.stream))
    strange = strange_steps(trace, made, made.lumped)
    tally = Tally(strange.decisions, strange.recomputed)
    for view in steps_of(trace, strange.steps):
        tally.faults.extend(replay.step(view).faults)
    return tally


@dataclass(frozen=True, slots=True)
class InverseCdfDraw:
    """A draw by inverse CDF: mass `below` the token and its `own`, out of `total`."""

    u: float
    below: float
    own: float
    total: float

    @property
    def right(self) -> bool:
        """True if the number lies in the token's interval, up to rounding."""
        at = self.u * self.total
        return self.own > 0 and self.below - TOLERANCE <= at < self.below + self.own + TOLERANCE


@dataclass(frozen=True, slots=True)
class _Replay:
    trace: Trace
    made: Decisions
    exact: LumpedDecisions
    randomness: Randomness

    def step(self, view: StepView) -> Tally:
        """Recompute one step's decisions in order."""
        tally = Tally()
        for depth, x in enumerate(range(view.examined.start, view.examined.stop)):
            if view.q_kind is QKind.FULL:
                tally.decision(*self.draw(view, depth, x))
            tally.decision(True, list(self.test(view, depth, x)))
        for depth, at in enumerate(range(view.emitted.start, view.emitted.stop)):
            tally.decision(True, list(self.token(view, depth, at)))
        return tally

    def draw(self, view: StepView, depth: int, x: int) -> tuple[bool, list[Violation]]:
        """Whether a drafted token's draw could be recomputed, and the differences."""
        trace, node = self.trace, int(self.trace.examined_node[x])
        u, token = float(trace.node_uniform[view.nodes][node]), int(trace.node_token[view.nodes][node])
        below, own = float(trace.q_below[x]), float(trace.examined_q[x])
        if math.isnan(u) or math.isnan(below):
            return False, []
        position = view.position + depth
        key = self.randomness.uniform(position, Purpose.DRAFT)
        if u != key:
            message = f"draft number at position {position} recorded {u:.10g}, key gives {key:.10g}"
        elif not InverseCdfDraw(u, below, own, 1.0).right:
            message = f"drafted token {token} at position {position}: {_interval(below, own, u)}"
        else:
            return True, []
        return True, [Violation(view.index, message)]

    def test(self, view: StepView, depth: int, x: int) -> Iterator[Violation]:
        """Check an acceptance test, and its p and q against the place's cells."""
        yield from acceptance_faults(self.trace, view, x, view.position + depth, self.randomness)
        at = view.emitted.start + depth
        if at < view.emitted.stop and self.made.drafted[at] != NO_NODE:
            yield from self._cell_faults(view, at, x)

    def _cell_faults(self, view: StepView, at: int, x: int) -> Iterator[Violation]:
        cell, p, q = int(self.made.drafted[at]), float(self.trace.examined_p[x]), float(self.trace.examined_q[x])
        if cell == self.made.p.shape[1] - 1:
            return
        for what, number, law in (("p", p, self.made.p), ("q", q, self.made.q)):
            held = float(law[at, cell])
            if not math.isclose(number, held, rel_tol=ROUNDED, abs_tol=ROUNDED):
                message = f"{what} of drafted token {int(self.exact.refused[at])} recorded {number:.10g}"
                yield Violation(view.index, f"{message}, its cell holds {held:.10g}")

    def token(self, view: StepView, depth: int, at: int) -> Iterator[Violation]:
        """Check an emitted token: its p, its number, and that the number chooses the token."""
        trace, position = self.trace, view.position + depth
        token, role = int(trace.token[at]), Role(int(trace.role[at]))
        where = f"{role.name.lower()} token {token} at position {position}"
        if not same(float(trace.p[at]), float(trace.row_p[at])):
            yield Violation(
                view.index, f"p of the {where} recorded {float(trace.p[at]):.10g}, its row gives {trace.row_p[at]:.10g}"
            )
        u, purpose = float(trace.uniform[at]), PURPOSES.get(role)
        key = math.nan if purpose is None else self.randomness.uniform(position, purpose)
        if not identical(u, key):
            yield Violation(view.index, f"number of the {where} recorded {u:.10g}, key gives {key:.10g}")
            return
        if role is Role.RECOVERED:
            yield from self._residual_faults(view, at)
        if purpose is not None and not self._draw_of(at, role).right:
            drawn = self._draw_of(at, role)
            yield Violation(view.index, f"{where}: {_interval(drawn.below, drawn.own, u * drawn.total)}")

    def _draw_of(self, at: int, role: Role) -> InverseCdfDraw:
        exact, u = self.exact, float(self.trace.uniform[at])
        left = float(exact.residual_sum[at])
        if role is Role.RECOVERED and left > 0:
            own = max(float(exact.p[at] - exact.q[at]), 0.0)
            return InverseCdfDraw(u, float(exact.residual_below[at]), own, left)
        return InverseCdfDraw(u, float(exact.p_below[at]), float(exact.p[at]), 1.0)

    def _residual_faults(self, view: StepView, at: int) -> Iterator[Violation]:
        recorded, computed = float(self.trace.residual_mass[view.index]), float(self.exact.residual_sum[at])
        if not same(recorded, computed):
            yield Violation(view.index, f"residual mass recorded {recorded:.10g}, its row gives {computed:.10g}")


def acceptance_faults(
    trace: Trace, view: StepView, x: int, position: int, randomness: Randomness
) -> Iterator[Violation]:
    """Check an acceptance test's number, and that the number gives the recorded decision."""
    u, p, q = (float(column[x]) for column in (trace.examined_uniform, trace.examined_p, trace.examined_q))
    key = randomness.uniform(position, Purpose.ACCEPT)
    if u != key:
        yield Violation(view.index, f"acceptance number at position {position} recorded {u:.10g}, key gives {key:.10g}")
    if bool(trace.examined_accepted[x]) != (u * q < p):
        was = "accepted" if trace.examined_accepted[x] else "rejected"
        yield Violation(
            view.index, f"drafted token at position {position} was {was} with u {u:.6g}, p {p:.6g}, q {q:.6g}"
        )


def _interval(below: float, own: float, at: float) -> str:
    return f"its law gives it [{below:.10g}, {below + own:.10g}), its number chooses {at:.10g}"
