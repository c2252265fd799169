"""Drafted tokens that a grammar forbids, as what they are: drafted, examined and refused.

vLLM asks the grammar before it schedules a draft and drops the first forbidden token with all behind it, so that its
verifier never sees them. In the record that token is a drafted one which the target gives probability 0, and the token
that comes out at its place is the recovered one: the law of what was drafted then is the drafter's, and the token after
a refusal is judged by the rule's residual. The scheduler's hook knows the token, the worker's its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.backends.vllm.spool import SpooledRows, SpooledStep
from engine.core.types import Floats, Mask, QKind
from engine.record.foreign_steps import ForeignStep
from engine.record.mask_bits import unpacked
from engine.record.reduction import NAN


def with_forbidden(
    worker: Sequence[SpooledRows] | None, scheduler: Sequence[SpooledStep] | None
) -> tuple[SpooledRows, ...] | None:
    """The worker's steps with the tokens that only the scheduler saw, where the two have the same steps."""
    if worker is None or scheduler is None or len(worker) != len(scheduler):
        return None if worker is None else tuple(worker)
    return tuple(
        replace(seen, step=replace(seen.step, forbidden=other.forbidden)) if other.forbidden else seen
        for seen, other in zip(worker, scheduler, strict=True)
    )


@dataclass(frozen=True, slots=True)
class ForbiddenDraft:
    """The first drafted token that a grammar forbade, and the row that it was drawn from; None if it was not drawn."""

    token: int
    row: Floats | None


def forbidden_draft(seen: SpooledRows, allowed: Mask | None, *, drawn: bool) -> ForbiddenDraft | None:
    """None if none is known: without masks, in a step that dropped no token or one that the mask of its place allows
    (an end token, where nothing else is left), or of a drawn token whose row is not there.

    Args:
        seen: the step.
        allowed: [E, V] its masks.
        drawn: its drafts come from rows.
    """
    tokens, place = seen.step.forbidden, len(seen.step.drafted)
    if not tokens or allowed is None or (drawn and (seen.behind is None or (place > 0 and "q" not in seen.numbers))):
        return None
    # a row that decided nothing has no mask here, and its drafted token is not examined
    if place < len(allowed) and allowed[place, tokens[0]]:
        return None
    return ForbiddenDraft(tokens[0], None if seen.behind is None or not drawn else seen.behind.astype(np.float64))


def with_refused(step: ForeignStep, refused: ForbiddenDraft | None) -> ForeignStep:
    """The step with that token at the end of its draft, where the target refused it."""
    if refused is None:
        return step
    kind = QKind.ONE_HOT if refused.row is None else QKind.FULL
    rows = None if refused.row is None else refused.row[None]
    q = 1.0 if refused.row is None else float(refused.row[refused.token])
    return replace(
        step,
        drafted=(*step.drafted, refused.token),
        q_kind=kind,
        q=rows if step.q is None or rows is None else np.concatenate([step.q, rows]),
        examined_p=(*(step.examined_p or (NAN,) * len(step.drafted)), 0.0),
        examined_q=(*(step.examined_q or (NAN,) * len(step.drafted)), q),
    )


def masks_of(seen: SpooledRows, vocabulary: int) -> Mask:
    """[E, V] the masks that were applied; a step without any left every token allowed."""
    if seen.masks is None:
        return np.ones((len(seen.step.emitted), vocabulary), dtype=np.bool_)
    return np.array([unpacked(bits, vocabulary) for bits in seen.masks], dtype=np.bool_).reshape(-1, vocabulary)
