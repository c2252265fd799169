"""Replay of a trace without rows: numbers from their keys, decisions from recorded scalars.

A greedy token at level `topk` counts as recomputed if the largest score is unique. Under the chain rule `topk` holds
the masses behind every draw (`audit.checks.replay.masses`), under the Gumbel rule the two leaders of every draw
(`audit.checks.replay.perturbed`). Every other decision counts as not recomputable, even if its recorded numbers agree
with each other.
"""

import math
from collections.abc import Callable, Iterator

from audit.checks.replay.columns import PURPOSES
from audit.checks.replay.masses import acceptance_faults, replay_masses
from audit.checks.replay.perturbed import replay_perturbed
from audit.evidence.decisions import Decisions, lumped_decisions
from audit.evidence.structure import Violation
from audit.evidence.tally import Tally, identical
from engine.core.types import Protocol, RecordLevel, Role
from engine.record.trace import StepView, Trace, steps_of
from engine.sampling.rng import Randomness


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
