"""Vectorised search for suspect steps of a chain-rule trace at level `topk`.

It applies the rules of `audit.checks.replay.masses` in numpy to all numbers of a trace at once, with intervals and
cells as arrays. The result contains every step that breaks a rule, and may contain steps within the rules' tolerance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.decisions import NO_NODE, Decisions, LumpedDecisions
from audit.evidence.tally import TOLERANCE
from engine.core.types import Floats, QKind, Role
from engine.record.columns import EntryIndex, entries_before, examined_nodes, numbered
from engine.record.trace import Trace
from engine.sampling.rng import Purpose, uniforms_at

ROUNDED: Final = 1e-6
"""Relative rounding of a float32 cell."""
PURPOSES: Final[Mapping[Role, Purpose]] = {
    Role.RECOVERED: Purpose.RESIDUAL,
    Role.BONUS: Purpose.BONUS,
    Role.PLAIN: Purpose.BONUS,
}
CLOSE: Final = TOLERANCE / 2
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
    node = examined_nodes(trace)
    number = trace.node_uniform[node]
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
    """The numbers that the keys give: for the draw and the test of each examined token [X], and for each emitted token
    [E], NaN for an accepted one.
    """

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
