"""Recompute the chain rule at level `topk` from the recorded masses of each draw.

A token drawn from a law by a number u is right if the law's mass before it, in id order, is at most u and its own mass
reaches beyond u. The recorder computed the masses from whole rows, which the record does not hold; if a token has a
cell, its mass must agree with the cell. Numbers come from the key.

The rules are first applied in numpy to all numbers of a trace at once, with intervals and cells as arrays. The result
contains every step that breaks a rule, and may contain steps within the rules' tolerance; only these are then examined
one by one.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.decisions import NO_NODE, Decisions, LumpedDecisions
from audit.evidence.structure import Violation
from audit.evidence.tally import CLOSE, ROUNDED, TOLERANCE, Tally, identical, same
from engine.core.types import Floats, QKind, Role
from engine.record.columns import EntryIndex, entries_before, examined_nodes, numbered
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import Purpose, Randomness, uniforms_at

PURPOSES: Final[Mapping[Role, Purpose]] = {
    Role.RECOVERED: Purpose.RESIDUAL,
    Role.BONUS: Purpose.BONUS,
    Role.PLAIN: Purpose.BONUS,
}
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SuspectSteps:
    """Number of decisions and of recomputable decisions of a trace, and its suspect steps in order."""

    decisions: int
    recomputed: int
    steps: list[int]


def strange_steps(trace: Trace, made: Decisions, exact: LumpedDecisions) -> SuspectSteps:
    """Count the decisions and find the steps; arguments as in `audit.checks.replay.masses`."""
    examined, emitted = numbered(trace.n_examined), numbered(trace.n_emitted)
    drawn = trace.q_kind[examined.step] == QKind.FULL
    number = trace.node_uniform[examined_nodes(trace)]
    silent = drawn & (np.isnan(number) | np.isnan(trace.q_below))
    keys = _keys(trace, examined, emitted)
    # NaN compares as wrong
    with np.errstate(invalid="ignore"):
        wrong = (
            (number != keys.draft) | _missed(number, trace.q_below, trace.examined_q, np.ones_like(number))
        ) & drawn
        wrong &= ~silent
        wrong |= _tests(trace, examined, made, keys.accept)
        steps = np.concatenate([examined.step[wrong], emitted.step[_tokens(trace, emitted, exact, keys.token)]])
    decisions = int(drawn.sum()) + len(drawn) + len(emitted.step)
    return SuspectSteps(decisions, decisions - int(silent.sum()), np.unique(steps).tolist())


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys' numbers: of the draw and the test of each examined token [X]; [E] of emitted ones, NaN if accepted."""

    draft: Floats
    accept: Floats
    token: Floats


def _keys(trace: Trace, examined: EntryIndex, emitted: EntryIndex) -> _Keys:
    purposes = np.full(max(Role) + 1, -1)
    for role, purpose in PURPOSES.items():
        purposes[role] = purpose
    wanted, count = purposes[trace.role], len(examined.step)
    tested, made = _positions(trace, examined), _positions(trace, emitted)
    drafts, tests = np.full(count, int(Purpose.DRAFT)), np.full(count, int(Purpose.ACCEPT))
    # one call, because half of its cost does not depend on the number of keys
    numbers = uniforms_at(
        trace.header.sampling.seed,
        trace.header.stream,
        np.concatenate([tested, tested, made]),
        np.concatenate([drafts, tests, wanted]),
    )
    draft, accept, token = np.split(numbers, [count, 2 * count])
    return _Keys(draft, accept, token)


def _positions(trace: Trace, at: EntryIndex) -> NDArray[np.int64]:
    return np.asarray(trace.position[at.step].astype(np.int64) + at.local)


def _missed(u: Floats, below: Floats, own: Floats, total: Floats) -> Flags:
    """True for numbers that may lie outside their token's interval (`audit.checks.replay.masses.InverseCdfDraw`)."""
    at = u * total
    inside = (own > 0) & (below - CLOSE <= at) & (at < below + own + CLOSE)
    return np.asarray(~inside)


def _tests(trace: Trace, examined: EntryIndex, made: Decisions, keys: Floats) -> Flags:
    u, p, q = trace.examined_uniform, trace.examined_p, trace.examined_q
    wrong = (u != keys) | ((trace.examined_accepted != 0) != (u * q < p))
    first = entries_before(trace.n_emitted)
    inside = np.flatnonzero(examined.local < trace.n_emitted[examined.step])
    at = first[examined.step[inside]] + examined.local[inside]
    cell = made.drafted[at]
    own = (cell != NO_NODE) & (cell != made.p.shape[1] - 1)
    inside, at, cell = inside[own], at[own], cell[own]
    for number, law in ((p, made.p), (q, made.q)):
        # half of the tolerance for a number below 1
        wrong[inside] |= ~(np.abs(number[inside] - law[at, cell]) <= ROUNDED / 2)
    return np.asarray(wrong)


def _tokens(trace: Trace, emitted: EntryIndex, exact: LumpedDecisions, keys: Floats) -> Flags:
    u, drawn, recovered = trace.uniform, ~np.isnan(keys), trace.role == Role.RECOVERED
    wrong = ~(np.abs(trace.p - trace.row_p) <= CLOSE)
    wrong |= np.where(drawn, u != keys, ~np.isnan(u))
    mass = trace.residual_mass[emitted.step]
    wrong |= recovered & ~(np.abs(mass - exact.residual_sum) <= CLOSE)
    left = recovered & (exact.residual_sum > 0)
    own = np.where(left, np.maximum(exact.p - exact.q, 0.0), exact.p)
    below = np.where(left, exact.residual_below, exact.p_below)
    wrong |= drawn & _missed(u, below, own, np.where(left, exact.residual_sum, 1.0))
    return np.asarray(wrong)


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
            recorded, computed = float(self.trace.residual_mass[view.index]), float(self.exact.residual_sum[at])
            if not same(recorded, computed):
                yield Violation(view.index, f"residual mass recorded {recorded:.10g}, its row gives {computed:.10g}")
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
