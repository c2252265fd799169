"""Several traces as one: each column holds that of the first trace, then that of the second, and so on.

Counts are per step, so whatever works on the steps of one trace works on those of all of them. A call of numpy costs a
microsecond however few values it has, and a trace of a few hundred tokens needs hundreds of calls.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import TraceError
from engine.core.types import Role
from engine.record import shared_columns
from engine.record.columns import HeldColumns, empty, place_fault
from engine.record.envelope import damage_named
from engine.record.trace import Trace, TraceHeader

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
    """The traces, whose columns fit together, in groups of the same columns.

    Args:
        given: the traces.
        only: the columns to join, which include those of `shared_columns.NEEDED`.

    Raises:
        TraceError: a trace refers to a node that does not exist.
    """
    groups: dict[object, dict[int, HeldColumns]] = {}
    for place, held in enumerate(given):
        groups.setdefault((held.short, tuple(held.columns)), {})[place] = held
    for members in groups.values():
        with damage_named():
            made = _joined(members, only)
            fault = place_fault(made.trace)
        if fault is not None:
            raise TraceError(fault)
        yield made


def _joined(members: dict[int, HeldColumns], only: Collection[str]) -> JoinedTraces:
    parts = [held.columns for held in members.values()]
    first = next(iter(members.values()))
    whole = empty(first.header.vocabulary)
    whole |= {name: np.concatenate([part[name] for part in parts]) for name in first.columns if name in only}
    whole |= shared_columns.restored(first.short, whole)
    steps = np.array([len(part.get("position", ())) for part in parts], np.int64)
    headers = tuple(held.header for held in members.values())
    return JoinedTraces(tuple(members), headers, Trace(header=first.header, **whole), steps)
