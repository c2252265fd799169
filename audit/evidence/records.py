"""The evidence that a check receives, read from the store.

A check gets one `Evidence` and no models, files or engine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, overload

from engine.record.effective import Effective, LoopOwner

if TYPE_CHECKING:
    from engine.core.types import FinishReason
    from engine.record.trace import Trace


UNREADABLE: Final = "unreadable"
"""Kind of the error of a request whose record contradicts itself: the engine answered, and the record shows nothing."""

DIRECTED: Final = "directed"
"""Workload and domain of the requests that the auditor adds to bring about situations."""
DIRECTED_PREFIX: Final = f"{DIRECTED}/"
"""Begin of their cases' names; no suite has a workload of that name."""


class Level(IntEnum):
    """Amount of evidence that an engine revealed; it limits the possible claims."""

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
    """Purpose of an arm."""

    BASELINE = "baseline"
    """The target alone, at a candidate's sampling parameters."""
    CONTROL = "control"
    """The baseline again in another batch shape: measures the engine's own noise."""
    CANDIDATE = "candidate"
    REPEAT = "repeat"
    """The candidate repeated unchanged: shows whether the seed fixes the tokens."""
    ALONE = "alone"
    """The candidate, one request at a time."""
    REVERSED = "reversed"
    """The candidate with its requests in reverse order."""
    OTHER_GAMMA = "regamma"
    """The candidate at another draft length."""
    ANCHOR = "anchor"
    """The target's rows on the candidate's tokens, by a pass independent of the candidate's."""
    NOISE = "noise"
    """The same pass on the baseline's answers: shows how far from it the target alone is."""
    REREAD = "reread"
    """The same rows under the candidate's own numerics: the target alone reads each answer again."""
    REDRAFT = "redraft"
    """The candidate's drafts made again along its record, by a fresh proposer, one request at a time."""

    @property
    def reads(self) -> bool:
        """True for an arm that follows another arm's tokens and decodes none of its own."""
        return self in (ArmKind.ANCHOR, ArmKind.NOISE, ArmKind.REREAD, ArmKind.REDRAFT)

    @property
    def keeps_sessions(self) -> bool:
        """False for the candidate decoded once more: its answers, and so its later turns, may be others."""
        return self not in (ArmKind.REPEAT, ArmKind.ALONE, ArmKind.REVERSED, ArmKind.OTHER_GAMMA)


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
    """True if the stored trace still matches its recorded digest."""

    @property
    def key(self) -> str:
        """Key of the request for pairing across arms (case and repetition)."""
        return f"{self.case_id}#{self.sample}"

    @property
    def directed(self) -> bool:
        """True if the auditor added the request; no suite has a workload of that name."""
        return is_directed(self.case_id)


def is_directed(case_id: str) -> bool:
    """True for the cases that the auditor adds."""
    return case_id.startswith(DIRECTED_PREFIX)


def is_later_turn(case_id: str) -> bool:
    """True for the turns of a session after its first."""
    return re.search(r"~[0-9a-f]{8}$", case_id) is not None


def later_turn(case_id: str, prompt: str) -> str:
    """The case of the turn that has this prompt: a case has one prompt in every arm, and answers may differ."""
    return f"{case_id}~{hashlib.sha256(prompt.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def request_order(case_id: str, sample: int) -> tuple[bool, str, int]:
    """Key that sorts an arm's requests: the suite's own come first, so the first has the arm's sampling parameters."""
    return is_directed(case_id), case_id, sample


class LazyRequests(Sequence[RequestRecord]):
    """Records that are read on each access and never cached.

    Args:
        count: number of records.
        read: returns the record at an index, the same one on every call.
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
        """One record, or a lazy slice."""
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
    """A tuple or `LazyRequests`: iterate as often as needed, one record at a time, and keep no list of their traces."""
    failed: Sequence[RequestRecord] = ()
    """Requests without an answer; `requests` does not contain them."""
    refused: Sequence[RequestRecord] = ()
    """Requests whose prompt a filter refused; they have no tokens, and `requests` does not contain them."""
    directed: Mapping[int, str] = field(default_factory=dict)
    """Pairing key of each directed request by its index in `requests`."""

    def keeping(self, keys: Container[str] = ()) -> ArmRecord:
        """Without the directed requests, but for those of these pairing keys."""
        dropped = {index for index, key in self.directed.items() if key not in keys}
        if not dropped:
            return self
        kept, read = [index for index in range(len(self.requests)) if index not in dropped], self.requests
        directed = {place: self.directed[index] for place, index in enumerate(kept) if index in self.directed}
        return replace(self, requests=LazyRequests(len(kept), lambda at: read[kept[at]]), directed=directed)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """By pairing key of each request whose record could not be written or followed: the reason."""
        errors = ((item.key, item.trace.header.facts.get("error", {})) for item in self.failed)
        return {key: str(error.get("message")) for key, error in errors if error.get("kind") == UNREADABLE}

    @property
    def ours(self) -> bool:
        """True if the native engine decoded: its random numbers come from the key, its p is in float64."""
        return self.effective.decoder is LoopOwner.OWN

    @property
    def taken_over(self) -> bool:
        """True for a reused baseline, whose times come from an earlier run."""
        return self.effective.origin is not None

    @property
    def keyed(self) -> bool:
        """True if every random number can be regenerated from its key (native engine) or none was used (greedy)."""
        return self.ours or all(request.trace.header.sampling.greedy for request in self.requests)

    def by_key(self) -> dict[str, RequestRecord]:
        """Requests by their pairing key."""
        return {request.key: request for request in self.requests}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One candidate arm with its comparison arms."""

    candidate: ArmRecord
    baseline: ArmRecord | None = None
    control: ArmRecord | None = None
    companions: Mapping[ArmKind, ArmRecord] = field(default_factory=dict)
    """Further arms that the candidate's checks requested (`audit.checks.base.interface.Check.companions`)."""
    noise: tuple[ArmRecord, ...] = ()
    """Further controls: the baseline repeated, and with its requests in another order."""

    @property
    def controls(self) -> tuple[ArmRecord, ...]:
        """Every repeated run of the baseline."""
        return self.noise if self.control is None else (self.control, *self.noise)

    @property
    def constrained(self) -> bool:
        """True if a request of the candidate has a grammar."""
        return any(request.trace.header.sampling.structured is not None for request in self.candidate.requests)

    def of_workload(self) -> Evidence:
        """The evidence of the suite's own requests, without those that the auditor added."""
        return Evidence(
            candidate=self.candidate.keeping(),
            baseline=None if self.baseline is None else self.baseline.keeping(),
            control=None if self.control is None else self.control.keeping(),
            companions={kind: arm.keeping() for kind, arm in self.companions.items()},
            noise=tuple(arm.keeping() for arm in self.noise),
        )


OWN = "server"
"""The record's word for tokens that the engine named itself; other words name tokens made from its text."""


def names_its_ends(request: RequestRecord) -> bool:
    """True if the tokens are those that the engine generated, including the end token."""
    return str(request.trace.header.facts.get("tokens", OWN)) == OWN


def foreign_tokens(request: RequestRecord) -> str | None:
    """Why the tokens cannot be counted; None if they are the engine's and its end tokens are known."""
    header = request.trace.header
    if not names_its_ends(request):
        return f"the engine names no tokens, those on record are by {header.facts['tokens']}"
    if "tokens" in header.facts and not header.eos_ids:
        return "the end tokens of a model that is only served are not known"
    return None
