"""Replay of a trace without rows: numbers from their keys, decisions from recorded scalars.

A greedy token at level `topk` counts as recomputed if the largest score is unique. Under the chain rule `topk` holds
the masses behind every draw (`audit.checks.replay.masses`), under the Gumbel rule the two leaders of every draw. The
noise of every token follows from the key, so the sums of the leaders and of all cells are computed again. What a row
gives to tokens without a cell is on record for the leaders alone; a token of the tail that the record leaves out is not
seen. Every other decision counts as not recomputable, even if its recorded numbers agree with each other.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.checks.replay.masses import PURPOSES, acceptance_faults, replay_masses
from audit.evidence.decisions import Decisions, lumped_decisions
from audit.evidence.structure import Violation
from audit.evidence.tally import ROUNDED, TOLERANCE, Tally, identical, same
from engine.core.types import Floats, Protocol, RecordLevel, Role
from engine.record.columns import numbered
from engine.record.rows.lumping import PAD
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import Randomness, gumbel_at

SUMS = 16 * TOLERANCE
"""Tolerance of log p plus noise, whose terms are up to 40 in size."""


def replay_perturbed(trace: Trace) -> Tally:
    """Recompute a well-formed trace of the Gumbel rule with its leaders."""
    replay = _replay_of(trace)
    tally = Tally()
    for view in steps_of(trace):
        replay.step(view, tally)
    return tally


@dataclass(frozen=True, slots=True)
class _Replay:
    trace: Trace
    own: Floats
    """[E] log p plus noise of the emitted token."""
    held: Floats
    """[E] p of the emitted token by its cell, NaN if it has none."""
    cells: Floats
    """[E] the largest log p plus noise of the other cells."""
    second: Floats
    """[E] log p plus noise of the runner-up if it has a cell, else NaN."""

    def step(self, view: StepView, tally: Tally) -> None:
        """The decisions of one step, down its tree."""
        trace, tree = self.trace, view.tree
        left = list(range(view.examined.start, view.examined.stop))
        node: int | None = -1
        for at in range(view.emitted.start, view.emitted.stop):
            token = int(trace.token[at])
            offered = [] if node is None else [i for i, parent in enumerate(tree.parents) if parent == node]
            node = None
            for child in offered:
                tally.decision(True, list(self.test(view, at, child, left)))
                if tree.tokens[child] == token:
                    node = child
                    break
            tally.decision(True, list(self.token(view, at, bool(offered), bool(len(tree)), node is not None)))
        if left:
            tally.decision(
                True, [Violation(view.index, f"{len(left)} drafted tokens were examined that the rule leaves")]
            )

    def test(self, view: StepView, at: int, child: int, left: list[int]) -> Iterator[Violation]:
        """A drafted token is kept exactly if it is the emitted one."""
        trace, token = self.trace, int(self.trace.token[at])
        x = left.pop(0) if left else None
        if x is None or int(trace.examined_node[x]) != child:
            yield Violation(view.index, f"drafted node {child} was not examined where the rule examines it")
            return
        drafted = int(trace.node_token[view.nodes][child])
        if bool(trace.examined_accepted[x]) != (drafted == token):
            yield Violation(view.index, f"drafted token {drafted} was accepted or not against the rule")
        own = np.flatnonzero(trace.cell_id[at] == drafted)
        known = trace.row_p[at] if drafted == token else trace.cell_p[at, own[0]] if len(own) else np.nan
        if abs(float(trace.examined_p[x]) - float(known)) > ROUNDED:
            message = f"p of drafted token {drafted} recorded {trace.examined_p[x]:.10g}, its row gives {known:.10g}"
            yield Violation(view.index, message)

    def token(self, view: StepView, at: int, offered: bool, drafted: bool, kept: bool) -> Iterator[Violation]:
        """The emitted token leads, and its role follows from the draft."""
        trace, token = self.trace, int(self.trace.token[at])
        where = f"token {token} at place {at - view.emitted.start}"
        role = Role(int(trace.role[at]))
        expected = Role.ACCEPTED if kept else Role.RECOVERED if offered else Role.BONUS if drafted else Role.PLAIN
        if role is not expected:
            yield Violation(
                view.index, f"role of {where} recorded {role.name.lower()}, the rule gives {expected.name.lower()}"
            )
        if not same(float(trace.p[at]), float(trace.row_p[at])):
            yield Violation(
                view.index, f"p of {where} recorded {trace.p[at]:.10g}, its row gives {trace.row_p[at]:.10g}"
            )
        if abs(float(trace.row_p[at]) - self.held[at]) > ROUNDED:
            yield Violation(
                view.index, f"p of {where}: its row gives {trace.row_p[at]:.10g}, its cell {self.held[at]:.10g}"
            )
        if int(trace.best_id[at, 0]) != token:
            yield Violation(view.index, f"{where}: the largest log p plus noise is that of {int(trace.best_id[at, 0])}")
            return
        first, second = trace.best_score[at].tolist()
        if not abs(first - self.own[at]) <= SUMS * max(1.0, abs(first)):
            yield Violation(
                view.index, f"{where}: log p plus noise recorded {first:.10g}, the key gives {self.own[at]:.10g}"
            )
        if second > first or self.cells[at] > first + ROUNDED:
            yield Violation(view.index, f"{where}: another token has a larger log p plus noise")
        if abs(second - self.second[at]) > ROUNDED:
            yield Violation(view.index, f"{where}: the runner-up's log p plus noise is not that of its cell")


def _replay_of(trace: Trace) -> _Replay:
    emitted = numbered(trace.n_emitted)
    position = trace.position[emitted.step].astype(np.int64) + emitted.local
    own = _logs(trace.row_p) + _noise(trace, position, trace.token.astype(np.int64))
    ids = trace.cell_id.astype(np.int64)
    used = (ids != PAD) & (trace.cell_p > 0)
    places = np.repeat(position, ids.shape[1]).reshape(ids.shape)
    sums = np.full(ids.shape, -np.inf)
    sums[used] = _logs(trace.cell_p[used]) + _noise(trace, places[used], ids[used])
    runner_up = ids == trace.best_id[:, 1].astype(np.int64)[:, None]
    second = np.where((runner_up & used).any(axis=1), np.where(runner_up, sums, -np.inf).max(axis=1), np.nan)
    emitted_cell = ids == trace.token.astype(np.int64)[:, None]
    cell = np.where(emitted_cell, trace.cell_p, -np.inf).max(axis=1, initial=-np.inf)
    held = np.where(emitted_cell.any(axis=1), cell, np.nan)
    others = np.where(emitted_cell, -np.inf, sums).max(axis=1, initial=-np.inf)
    return _Replay(trace, own, held, others, second)


def _logs(law: NDArray[np.floating]) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(law.astype(np.float64))


def _noise(trace: Trace, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> Floats:
    return gumbel_at(trace.header.sampling.seed, trace.header.stream, positions, ids)


def replay_partial(trace: Trace, made: Callable[[Trace], Decisions] = lumped_decisions) -> Tally:
    """Recompute as much as the level allows; the trace's columns are well-formed. `made` reads its cells."""
    tally = Tally()
    randomness = Randomness(trace.header.sampling.seed, trace.header.stream)
    scalars = trace.header.level is not RecordLevel.TOKENS
    if trace.header.protocol is Protocol.CHAIN and not trace.header.sampling.greedy and len(trace.cell_id):
        return replay_masses(trace, made(trace))
    if trace.header.protocol is Protocol.GUMBEL and len(trace.best_id):
        return replay_perturbed(trace)
    for view in steps_of(trace):
        known = [_argmax_is_known(trace, at) for at in range(view.emitted.start, view.emitted.stop)]
        for at, recomputed in enumerate(known, start=view.emitted.start):
            tally.decision(recomputed, list(_argmax_faults(trace, view, at)) if recomputed else [])
        for depth, x in enumerate(range(view.examined.start, view.examined.stop)):
            chain = scalars and trace.header.protocol is Protocol.CHAIN
            faults = list(acceptance_faults(trace, view, x, view.position + depth, randomness)) if chain else []
            tally.decision(all(known), faults)
        if scalars and trace.header.protocol is Protocol.CHAIN:
            tally.faults.extend(_number_faults(trace, view, randomness))
    return tally


def _argmax_is_known(trace: Trace, at: int) -> bool:
    greedy = trace.header.protocol is Protocol.GREEDY or trace.header.sampling.greedy
    return greedy and trace.header.level is RecordLevel.TOPK and float(trace.margin[at]) > 0


def _argmax_faults(trace: Trace, view: StepView, at: int) -> Iterator[Violation]:
    token, top = int(trace.token[at]), int(trace.top_id[at, 0])
    if token != top:
        yield Violation(view.index, f"emitted token {token}, the largest recorded score is that of {top}")


def _number_faults(trace: Trace, view: StepView, randomness: Randomness) -> Iterator[Violation]:
    """Check the number behind a recovered, bonus or plain token."""
    for depth, at in enumerate(range(view.emitted.start, view.emitted.stop)):
        role, recorded = Role(int(trace.role[at])), float(trace.uniform[at])
        purpose = PURPOSES.get(role)
        key = math.nan if purpose is None else randomness.uniform(view.position + depth, purpose)
        if not identical(recorded, key):
            where = f"{role.name.lower()} token at position {view.position + depth}"
            yield Violation(view.index, f"number of the {where} recorded {recorded:.10g}, key gives {key:.10g}")
