"""Several traces as one: each column holds that of the first trace, then that of the second, and so on.

Counts are per step, so whatever works on the steps of one trace works on those of all of them. A call of numpy costs a
microsecond however few values it has, and a trace of a few hundred tokens needs hundreds of calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import TraceError
from engine.core.types import Role
from engine.record import once
from engine.record.trace import COLUMNS, DAMAGE, NONE, HeldColumns, Trace, TraceHeader

PER_STEP: Final = ("n_drafted", "n_examined", "n_emitted", "draft_us", "verify_us", "draft_version")
COUNTED: Final = {
    "n_drafted": ("node_token", "node_parent"),
    "n_examined": ("examined_node", "examined_p", "examined_q", "examined_accepted"),
    "n_emitted": ("token", "role", "p", "logprob"),
}
"""Columns that have as many values as the steps count."""
ABSENT: Final = frozenset(("examined_p", "examined_q", "p", "logprob", "draft_version"))
"""Columns that a trace may lack."""
Column = NDArray[Any]
Wholes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JoinedTraces:
    """Traces that have the same columns.

    places: which of the given traces they are.
    headers: the header of each.
    trace: the columns of all, with the header of the first.
    steps: [traces] number of steps of each.
    """

    places: tuple[int, ...]
    headers: tuple[TraceHeader, ...]
    trace: Trace
    steps: Wholes

    def totals(self, per_step: NDArray[np.integer[Any]]) -> Wholes:
        """[traces] the sum over the steps of each."""
        return sums(per_step, self.steps)

    def accepted(self) -> Wholes:
        """[traces] drafted tokens of each that were emitted."""
        return sums(self.trace.role == Role.ACCEPTED, self.totals(self.trace.n_emitted))


def sums(values: Column, counts: Wholes) -> Wholes:
    """[n] the sum of the first count of the values, of those that follow it by the second count, and so on."""
    return np.asarray(np.diff(ends_of(values)[ends_of(counts)]))


def ends_of(counts: Column) -> Wholes:
    """[n + 1] the sums of the counts before each, and of all."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def joined(given: Iterable[HeldColumns], only: Collection[str]) -> Iterator[JoinedTraces]:
    """The traces in groups of the same columns, with their columns `only`, which include those of `once.NEEDED`.

    Raises:
        TraceError: a trace's columns do not fit together.
    """
    groups: dict[object, dict[int, HeldColumns]] = {}
    for place, held in enumerate(given):
        columns = held.columns
        kinds = tuple((columns[name].dtype, not len(columns[name])) for name in ABSENT if name in columns)
        groups.setdefault((held.short, tuple(columns), kinds), {})[place] = held
    for members in groups.values():
        try:
            yield _joined(members, only)
        except DAMAGE as error:
            raise TraceError(f"damaged trace: {error}") from error


def _joined(members: dict[int, HeldColumns], only: Collection[str]) -> JoinedTraces:
    parts = [held.columns for held in members.values()]
    first = next(iter(members.values()))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in first.columns if name in only}
    steps = np.array([len(part["position"]) for part in parts], np.int64)
    whole = dict.fromkeys(COLUMNS, NONE) | columns | once.restored(first.short, columns)
    headers = tuple(held.header for held in members.values())
    made = JoinedTraces(tuple(members), headers, Trace(header=first.header, **whole), steps)
    _require_fit(made, parts, first.short)
    return made


def _require_fit(made: JoinedTraces, parts: Sequence[Mapping[str, Column]], short: Collection[str]) -> None:
    """Refuse traces one of which could lend values to the next.

    Raises:
        ValueError: a column has more or fewer values than its steps count.
    """
    for name in PER_STEP:
        _require(name, parts, made.steps)
    totals = {counts: made.totals(getattr(made.trace, counts)) for counts in COUNTED}
    accepted = made.accepted()
    for counts, names in COUNTED.items():
        for name in names:
            _require(name, parts, totals[counts] - accepted if name in short else totals[counts])


def _require(name: str, parts: Sequence[Mapping[str, Column]], wanted: Wholes) -> None:
    lengths = np.array([len(part.get(name, NONE)) for part in parts])
    if not (name in ABSENT and not lengths.any()) and (lengths != wanted).any():
        raise ValueError(f"column {name} does not fit the steps")
