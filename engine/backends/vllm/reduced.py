"""Steps whose rows vLLM's worker has reduced: from the worker's messages to the audit, and back.

The worker reduces each step's rows by the function that the built-in engine uses (`engine.record.reduction.reduce`)
and writes the columns instead of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import QKind, Timing
from engine.record.foreign_steps import ForeignStep
from engine.record.reduction import OF_EXAMINED, Masks

PREFIX: Final = "reduced_"
"""Begins the names of arrays that stand for rows."""
OWN: Final = ("p", "examined_p", "examined_q")
"""The engine's own numbers: of each emitted token, and of each drafted one twice."""
OF_MASKS: Final = tuple(Masks.__dataclass_fields__)


def head_of(step: ForeignStep) -> dict[str, Any]:
    """A step without its numbers, for a message's header."""
    assert step.columns is not None
    return {
        "drafted": list(step.drafted),
        "accepted": step.accepted,
        "q_kind": int(step.q_kind),
        "masked": len(step.columns["mask_digest"]) > 0,
    }


def arrays_of(steps: Sequence[ForeignStep]) -> dict[str, NDArray[Any]]:
    """The numbers of several steps, behind each other."""
    found: dict[str, list[NDArray[Any]]] = {}
    for step in steps:
        blank = (np.nan,) * len(step.drafted)
        own = (step.p or (np.nan,) * len(step.emitted), step.examined_p or blank, step.examined_q or blank)
        named = dict(zip(OWN, map(np.array, own), strict=True))
        for name, column in {**named, **(step.columns or {})}.items():
            found.setdefault(PREFIX + name, []).append(column)
    return {name: _joined(parts) for name, parts in found.items()}


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    filled = [each for each in parts if len(each)]
    # masks of requests without a grammar have no width
    return np.concatenate(filled) if filled else max(parts, key=lambda each: each.shape)


def steps_of(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Iterator[ForeignStep]:
    """The steps of a message, in its order; none if its rows are not reduced."""
    columns = {name.removeprefix(PREFIX): each for name, each in arrays.items() if name.startswith(PREFIX)}
    at = dict.fromkeys(columns, 0)
    for request in header["requests"]:
        head = request.get("reduced")
        if head is None:
            continue
        drafted, emitted = tuple(head["drafted"]), tuple(request["emitted"])
        step = ForeignStep(
            drafted, emitted, head["accepted"], QKind(head["q_kind"]), timing=Timing(batch=header["batch"])
        )
        own: dict[str, NDArray[Any]] = {}
        for name, column in columns.items():
            size = _size(name, step, head["masked"])
            own[name] = column[at[name] : at[name] + size]
            at[name] += len(own[name])
        yield _with_numbers(step, own)


def _size(name: str, step: ForeignStep, masked: bool) -> int:
    if name in OF_MASKS and not masked:
        return 0
    return step.examined if name in OF_EXAMINED else len(step.drafted) if name in OWN[1:] else len(step.emitted)


def _with_numbers(step: ForeignStep, own: dict[str, NDArray[Any]]) -> ForeignStep:
    p, examined_p, examined_q = (tuple(own.pop(name).tolist()) for name in OWN)
    return ForeignStep(
        step.drafted,
        step.emitted,
        step.accepted,
        step.q_kind,
        p=p,
        examined_p=examined_p,
        examined_q=examined_q,
        timing=step.timing,
        columns=own,
    )
