"""Steps that another engine reported, as steps of ours.

Another engine reports its drafted and emitted tokens and the length of the accepted part; some engines also report the
target's rows or their own probabilities. This module computes scores from the raw rows and the requested parameters
with `engine.sampling.transforms`, so an engine that transforms its rows differently differs from these scores. It
draws no random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import (
    Emitted,
    Examined,
    Floats,
    Mask,
    Proposal,
    QKind,
    Role,
    StepOutcome,
    StepRecord,
    Timing,
    Tree,
)
from engine.record.rows.reduction import NAN, OF_EXAMINED, Rows
from engine.record.rows.row_laws import RowTerms
from engine.sampling.transforms import transform


@dataclass(frozen=True, slots=True)
class ForeignStep:
    """One step: N drafted tokens, E of the emitted ones kept.

    emitted: [E] committed tokens, without those that the engine cut after a stop.
    accepted: drafted tokens that the engine accepted, before the cut.
    q: [N, V] the rows that the drafts were drawn from, where `q_kind` is FULL.
    logits: [E, V] raw target rows that decided the emitted tokens; None where they are not known.
    p, examined_p, examined_q: the engine's own probabilities of the emitted tokens [E] and of the drafted ones
        [N]; empty if it reports none.
    """

    drafted: tuple[int, ...]
    emitted: tuple[int, ...]
    accepted: int = 0
    q_kind: QKind = QKind.NONE
    q: Floats | None = None
    logits: Rows | None = None
    p: tuple[float, ...] = ()
    examined_p: tuple[float, ...] = ()
    examined_q: tuple[float, ...] = ()
    uniforms: tuple[float, ...] = ()
    """[N] the acceptance numbers, where they are known."""
    timing: Timing = field(default_factory=Timing)
    allowed: Mask | None = None
    """[E, V] the grammar's masks on the rows; None without a grammar, or where they are not known."""
    columns: Mapping[str, NDArray[Any]] | None = None
    """The columns to which the rows were reduced in place (`rows.reduction.columns_of`), instead of them."""

    @property
    def examined(self) -> int:
        """Drafted tokens whose verdict is in the record: those emitted, and the one that was refused."""
        kept = min(self.accepted, len(self.emitted))
        refused = kept == self.accepted < min(len(self.drafted), len(self.emitted))
        return kept + refused


def cut(step: ForeignStep, count: int) -> ForeignStep:
    """The step with its first `count` emitted tokens only."""
    kept = replace(
        step,
        emitted=step.emitted[:count],
        p=step.p[:count],
        logits=None if step.logits is None else step.logits[:count],
        allowed=None if step.allowed is None else step.allowed[:count],
    )
    if step.columns is None:
        return kept
    sizes = {name: kept.examined if name in OF_EXAMINED else count for name in step.columns}
    return replace(kept, columns={name: item[: sizes[name]] for name, item in step.columns.items()})


def step_record(index: int, step: ForeignStep, history: Sequence[int], terms: RowTerms) -> StepRecord:
    """The step as one of ours, with the scores of its rows; `history` are the tokens before it, prompt included."""
    rows = np.empty((0, terms.vocabulary), np.float32) if step.logits is None else step.logits
    proposal = Proposal(Tree.chain(step.drafted), step.q_kind, step.q)
    return StepRecord(
        step=index,
        position=len(history),
        proposal=proposal,
        verdict=StepOutcome(_emitted(step), _examined(step)),
        logits=rows,
        scores=None if terms.sampling.plain_scores or step.logits is None else _scores(step, history, terms),
        timing=step.timing,
        allowed=step.allowed,
    )


def _emitted(step: ForeignStep) -> tuple[Emitted, ...]:
    kept = min(step.accepted, len(step.emitted))
    last = Role.PLAIN if not step.drafted else Role.BONUS if step.accepted == len(step.drafted) else Role.RECOVERED
    roles = [Role.ACCEPTED] * kept + [last] * (len(step.emitted) - kept)
    p = step.p or (NAN,) * len(step.emitted)
    return tuple(
        Emitted(token, role, row, value)
        for row, (token, role, value) in enumerate(zip(step.emitted, roles, p, strict=True))
    )


def _examined(step: ForeignStep) -> tuple[Examined, ...]:
    count = len(step.drafted)
    p, q, u = (values or (NAN,) * count for values in (step.examined_p, step.examined_q, step.uniforms))
    return tuple(Examined(node, p[node], q[node], u[node], node < step.accepted) for node in range(step.examined))


def _scores(step: ForeignStep, history: Sequence[int], terms: RowTerms) -> Floats:
    """[E, V] the rows under the requested bias, masks and penalties."""
    assert step.logits is not None
    seen = list(history)
    rows = []
    for at, (row, token) in enumerate(zip(step.logits, step.emitted, strict=True)):
        allowed = None if step.allowed is None else step.allowed[at]
        rows.append(transform(row, seen, len(terms.prompt), terms.sampling, terms.eos_ids, allowed).scores)
        seen.append(token)
    return np.stack(rows)
