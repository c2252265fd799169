"""The evidence that a check sees, read back from the store.

A check gets one `Evidence` and nothing else: no models, no files, no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, overload

from engine.core.types import FinishReason
from engine.record.effective import Decoder, Effective

if TYPE_CHECKING:
    from engine.record.trace import Trace


class Level(IntEnum):
    """How much an engine revealed; decides what may be claimed."""

    L0 = 0
    """Text."""
    L1 = 1
    """Log-probabilities of emitted tokens."""
    L2 = 2
    """p (top entries and a tail) per emitted token."""
    L3 = 3
    """p, q and acceptance decisions."""
    L4 = 4
    """L3 plus the random numbers."""


class ArmKind(StrEnum):
    """What an arm is for."""

    BASELINE = "baseline"
    """The target alone, at a candidate's sampling parameters."""
    CONTROL = "control"
    """The baseline again in another batch shape: measures the engine's own noise."""
    CANDIDATE = "candidate"
    REPEAT = "repeat"
    """The candidate once more, unchanged: shows what its seed fixes."""
    ALONE = "alone"
    """The candidate, one request at a time."""
    REVERSED = "reversed"
    """The candidate with its requests in reverse order."""
    OTHER_GAMMA = "regamma"
    """The candidate at another draft length."""
    ANCHOR = "anchor"
    """The target's own rows on the candidate's tokens, by a pass that shares nothing with the candidate's."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request of one arm."""

    request_id: str
    case_id: str
    sample: int
    domain: str
    trace: Trace
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    latency_us: int
    intact: bool
    """The stored trace still has the digest that was recorded with it."""

    @property
    def key(self) -> str:
        """What pairs the request with the other arms' (case and repetition)."""
        return f"{self.case_id}#{self.sample}"


class LazyRequests(Sequence[RequestRecord]):
    """Records that are read when they are asked for, and not kept.

    Args:
        count: how many there are.
        read: the record at an index; the same record each time.
    """

    def __init__(self, count: int, read: Callable[[int], RequestRecord]) -> None:
        self._indices = range(count)
        self._read = read

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[RequestRecord]:
        return map(self._read, self._indices)

    @overload
    def __getitem__(self, index: int) -> RequestRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RequestRecord]: ...

    def __getitem__(self, index: int | slice) -> RequestRecord | Sequence[RequestRecord]:
        """One record, or a part that is read as late as the whole."""
        if isinstance(index, slice):
            chosen, read = self._indices[index], self._read
            return LazyRequests(len(chosen), lambda at: read(chosen[at]))
        return self._read(self._indices[index])


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """All requests of one arm, ordered by case and sample."""

    name: str
    kind: ArmKind
    level: Level
    effective: Effective
    requests: Sequence[RequestRecord]
    """A tuple, or records that are read when they are asked for and not kept: go through them as often as need be,
    one at a time, and hold no list of their traces."""
    failed: Sequence[RequestRecord] = ()
    """Requests that the engine did not answer; they are not among `requests`."""

    @property
    def ours(self) -> bool:
        """Whether the project's own loop decoded: its random numbers are the key's, its p is in float64."""
        return self.effective.decoder is Decoder.OWN

    @property
    def taken_over(self) -> bool:
        """Whether an earlier run made it: its times are those of another day."""
        return self.effective.origin is not None

    @property
    def keyed(self) -> bool:
        """Whether no decision rests on a random number that no key gives: our own loop's arms, and greedy ones."""
        return self.ours or all(request.trace.header.sampling.greedy for request in self.requests)

    def by_key(self) -> dict[str, RequestRecord]:
        """Requests by what pairs them across arms."""
        return {request.key: request for request in self.requests}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One candidate arm with what it is compared to."""

    candidate: ArmRecord
    baseline: ArmRecord | None = None
    control: ArmRecord | None = None
    companions: Mapping[ArmKind, ArmRecord] = field(default_factory=dict)
    """Further arms that the candidate's checks asked for (`audit.checks.interface.Check.companions`)."""
    noise: tuple[ArmRecord, ...] = ()
    """Further controls: the baseline as it was, and with its requests in another order."""

    @property
    def controls(self) -> tuple[ArmRecord, ...]:
        """Every run of the baseline besides the baseline."""
        return self.noise if self.control is None else (self.control, *self.noise)
