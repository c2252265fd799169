"""The records of the two hooks, by request.

The worker's frames hold rows, the scheduler's lines tokens only. A file that
ends inside a message is read up to there; the engine died during a write.

Steps whose rows vLLM's worker has reduced: from the worker's messages to the audit, and back.

The worker reduces each step's rows by the function that the built-in engine uses (`reduce` of
`engine.record.rows.reduction`) and writes the columns instead of the rows.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.child import Frame, TruncatedStream, read
from engine.core.types import QKind, Timing
from engine.record.foreign.steps import ForeignStep
from engine.record.rows.reduction import OF_EXAMINED, Masks

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
    mapping: dict[str, list[NDArray[Any]]] = {}
    for step in steps:
        blank = (np.nan,) * len(step.drafted)
        own = (step.p or (np.nan,) * len(step.emitted), step.examined_p or blank, step.examined_q or blank)
        named = dict(zip(OWN, map(np.array, own), strict=True))
        for name, column in {**named, **(step.columns or {})}.items():
            mapping.setdefault(PREFIX + name, []).append(column)
    return {name: _joined(parts) for name, parts in mapping.items()}


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    filled = [part for part in parts if len(part)]
    # masks of requests without a grammar have no width
    return np.concatenate(filled) if filled else max(parts, key=lambda item: item.shape)


def steps_of(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Iterator[ForeignStep]:
    """The steps of a message, in its order; none if its rows are not reduced."""
    columns = {name.removeprefix(PREFIX): item for name, item in arrays.items() if name.startswith(PREFIX)}
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
            own[name] = column[at[name] : at[name] + _size(name, step, head["masked"])]
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


LAST: Final = "last_"
"""Begins the names of arrays that have an entry per request, not per drafted token."""
OF_ROWS: Final = ("rows", "masks", "behind")
"""Arrays that have no entry per drafted token."""


@dataclass(frozen=True, slots=True)
class SpooledStep:
    """One step of one request: D drafted and E emitted tokens, before any cut at a stop."""

    drafted: tuple[int, ...]
    emitted: tuple[int, ...]
    forbidden: tuple[int, ...] = field(default=(), compare=False)
    """The tokens that the drafter offered behind these and the grammar forbade, from the first forbidden one; the
    scheduler alone knows them.
    """
    priority: int | None = field(default=None, compare=False)
    preemptions: int | None = field(default=None, compare=False)
    """The request's, so far; both in the scheduler's record."""

    @property
    def accepted(self) -> int:
        """The number of accepted drafted tokens; a step emits one token more."""
        return max(0, len(self.emitted) - 1)


@dataclass(frozen=True, slots=True)
class SpooledRows:
    """The same with numbers: `numbers` has arrays of D entries, and q [D, V]; `last` those of the place behind.

    round: the number of the engine's step, which all requests in it share; None from a source that does not count.
    masks: [E, ceil(V / 8)] bits of the tokens that grammars allow; None in a step without a grammar.
    behind: [V] the row of the drafted token behind the scheduled ones, if the drafter has one.
    """

    step: SpooledStep
    batch: int
    rows: NDArray[Any] | None
    """[E, V]"""
    numbers: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    last: Mapping[str, float] = field(default_factory=dict)
    round: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The request's settings in the worker's batch (`hooks.batch_settings`)."""
    masks: NDArray[np.uint8] | None = None
    behind: NDArray[Any] | None = None
    reduced: ForeignStep | None = None
    """The step with its rows reduced in the worker, instead of rows, numbers and masks."""


def worker_steps(path: Path) -> dict[str, list[SpooledRows]]:
    """By vLLM's own names of requests."""
    mapping: dict[str, list[SpooledRows]] = {}
    if not path.exists():
        return mapping
    with path.open("rb") as stream:
        for frame in _frames(stream):
            for name, seen in split(frame):
                mapping.setdefault(name, []).append(seen)
    return mapping


def _frames(stream: Any) -> Iterator[Frame]:
    try:
        while (frame := read(stream)) is not None:
            yield frame
    except TruncatedStream:
        return


def split(frame: Frame) -> Iterator[tuple[str, SpooledRows]]:
    """A step's requests, each with its name in vLLM; rows and numbers lie behind each other in the same order."""
    row = node = 0
    rows, masks = frame.arrays.get("rows"), frame.arrays.get("masks")
    behind = iter(frame.arrays.get("behind", ()))
    lasts = {name.removeprefix(LAST): item for name, item in frame.arrays.items() if name.startswith(LAST)}
    others = (*OF_ROWS, *(name for name in frame.arrays if name.startswith((LAST, PREFIX))))
    numbers = {name: item for name, item in frame.arrays.items() if name not in others}
    reduced = steps_of(frame.header, frame.arrays)
    for index, request in enumerate(frame.header["requests"]):
        drafted, emitted = tuple(request["drafted"]), tuple(request["emitted"])
        own = {name: item[node : node + len(drafted)] for name, item in numbers.items()} if drafted else {}
        part = SpooledRows(
            SpooledStep(drafted, emitted),
            frame.header["batch"],
            None if rows is None else rows[row : row + len(emitted)],
            own,
            {name: float(item[index]) for name, item in lasts.items()},
            frame.header["step"],
            request.get("settings", {}),
            None if masks is None else masks[row : row + len(emitted)],
            next(behind) if "behind" in request else None,
            next(reduced) if "reduced" in request else None,
        )
        yield request["id"], part
        row, node = row + len(emitted), node + len(drafted)


@dataclass(slots=True)
class SchedulerLog:
    """The scheduler log, read on from the last position."""

    path: Path
    _at: int = 0

    def steps(self) -> dict[str, list[SpooledStep]]:
        """The new entries, by vLLM's own names of requests."""
        mapping: dict[str, list[SpooledStep]] = {}
        if not self.path.exists():
            return mapping
        with self.path.open("rb") as stream:
            stream.seek(self._at)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                for load in json.loads(line):
                    drafted, emitted, forbidden = (
                        tuple(load.get(name, ())) for name in ("drafted", "emitted", "forbidden")
                    )
                    known = {name: load.get(name) for name in ("priority", "preemptions")}
                    step = SpooledStep(drafted, emitted, forbidden, **known)
                    mapping.setdefault(load["id"], []).append(step)
        return mapping


def valid_drafts(step: SpooledStep) -> SpooledStep:
    """Without placeholders: a grammar's refusals, and padding, are negative and are never accepted."""
    kept = next((i for i, token in enumerate(step.drafted) if token < 0), len(step.drafted))
    return SpooledStep(step.drafted[:kept], step.emitted, step.forbidden if kept == len(step.drafted) else ())


def sized(numbers: Mapping[str, NDArray[Any]], count: int) -> dict[str, NDArray[Any]]:
    """The first `count` drafted tokens' numbers."""
    return {name: np.asarray(item[:count]) for name, item in numbers.items()}
