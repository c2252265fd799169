"""A step of vLLM as the hooks saw it, as a foreign step: the engine's own p and q, and the rows behind them.

It imports neither torch nor a compressor, because vLLM's worker runs it before it reduces a step's rows.

Drafted tokens that a grammar forbids, as what they are: drafted, examined and refused.

vLLM asks the grammar before it schedules a draft and drops the first forbidden token with all behind it, so that its
verifier never sees them. In the record that token is a drafted one which the target gives probability 0, and the token
that comes out at its place is the recovered one: the law of what was drafted then is the drafter's, and the token after
a refusal is judged by the rule's residual. The scheduler's hook knows the token, the worker's its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.vllm.spool import SpooledRows, SpooledStep, sized, valid_drafts
from engine.core.types import Floats, Mask, QKind, Timing
from engine.record.foreign.steps import ForeignStep
from engine.record.mask_bits import unpacked
from engine.record.rows.reduction import NAN


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


def forbidden_draft(seen: SpooledRows, allowed: Mask | None, *, drawn: bool) -> tuple[int, Floats | None] | None:
    """The first drafted token that a grammar forbade, and the row that it was drawn from; None if it was not drawn.

    None if none is known: without masks, in a step that dropped no token or one that the mask of its place allows
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
    return tokens[0], None if seen.behind is None or not drawn else seen.behind.astype(np.float64)


def with_refused(step: ForeignStep, refused: tuple[int, Floats | None] | None) -> ForeignStep:
    """The step with that token at the end of its draft, where the target refused it."""
    if refused is None:
        return step
    token, row = refused
    kind = QKind.ONE_HOT if row is None else QKind.FULL
    rows = None if row is None else row[None]
    q = 1.0 if row is None else float(row[token])
    return replace(
        step,
        drafted=(*step.drafted, token),
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


@dataclass(frozen=True, slots=True)
class StepReading:
    """Settings that give a request's steps meaning.

    greedy, structured: the request is at temperature 0; it has a grammar.
    drawn: drafts of sampled requests are drawn from rows.
    masks: the worker's hook sees what grammars do to the rows.
    """

    vocabulary: int
    greedy: bool
    structured: bool
    drawn: bool
    masks: bool = True


def decided(seen: SpooledRows, reading: StepReading) -> ForeignStep:
    """The step before any cut; as the worker decided it, if it reduced the rows."""
    if seen.reduced is not None:
        return seen.reduced
    step = valid_drafts(seen.step)
    size = len(step.drafted)
    numbers = sized(seen.numbers, size)
    kind = _q_kind(step, numbers, reading)
    allowed = _allowed(seen, reading)
    unknown = allowed is None and reading.structured
    result = ForeignStep(
        drafted=step.drafted,
        emitted=step.emitted,
        accepted=min(step.accepted, size),
        q_kind=kind,
        q=numbers["q"].astype(np.float64) if kind is QKind.FULL else None,
        # a row cannot be read without its mask
        logits=None if seen.rows is None or unknown else seen.rows,
        p=_p(seen, step, reading),
        examined_p=_drafted_p(step, numbers, reading),
        examined_q=_drafted_q(step, numbers, kind),
        timing=Timing(batch=seen.batch),
        allowed=allowed,
    )
    drawn = reading.drawn and not reading.greedy
    return with_refused(result, forbidden_draft(replace(seen, step=step), allowed, drawn=drawn))


def _allowed(seen: SpooledRows, reading: StepReading) -> Mask | None:
    """[E, V] the masks of a request with a grammar, where the worker's hook saw the step."""
    if not reading.structured or not reading.masks or seen.round is None:
        return None
    return masks_of(seen, reading.vocabulary)


def _q_kind(step: SpooledStep, numbers: Mapping[str, Any], reading: StepReading) -> QKind:
    """A greedy request's drafts are argmaxes, also beside sampled ones; a drawn draft without its row has no q."""
    if not step.drafted:
        return QKind.NONE
    if reading.greedy or not reading.drawn:
        return QKind.ONE_HOT
    return QKind.FULL if "q" in numbers else QKind.NONE


def _p(seen: SpooledRows, step: SpooledStep, reading: StepReading) -> tuple[float, ...]:
    """[E] by the engine's own law. A greedy token is its argmax, so that all of p is on it."""
    count = len(step.emitted)
    if reading.greedy:
        return tuple(_argmax(seen, i, token) for i, token in enumerate(step.emitted))
    known = _chances(seen.numbers.get("log_p_emitted", np.empty(0)))
    behind = _chances(np.array([seen.last.get("log_p", NAN)]))
    return (*known, *behind, *(NAN,) * count)[:count]


def _argmax(seen: SpooledRows, place: int, token: int) -> float:
    best = seen.numbers.get("best", ())
    return float(token == best[place]) if place < len(best) else 1.0


def _drafted_p(step: SpooledStep, numbers: Mapping[str, Any], reading: StepReading) -> tuple[float, ...]:
    if not numbers:
        return ()
    if reading.greedy:
        return tuple(float(token == best) for token, best in zip(step.drafted, numbers["best"], strict=True))
    return _chances(numbers["log_p_drafted"])


def _chances(logp: NDArray[Any]) -> tuple[float, ...]:
    """A log-probability that rounding put above 0 is 0."""
    return tuple(np.exp(np.minimum(logp.astype(np.float64), 0.0)).tolist())


def _drafted_q(step: SpooledStep, numbers: Mapping[str, Any], kind: QKind) -> tuple[float, ...]:
    if kind is QKind.ONE_HOT:
        return (1.0,) * len(step.drafted)
    if kind is QKind.NONE:
        return ()
    rows: Floats = numbers["q"]
    return tuple(float(row[token]) for row, token in zip(rows, step.drafted, strict=True))
