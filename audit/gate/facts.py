"""The facts that a decision rests on, as one value.

The workload of an arm is counted from the record and not from the suite.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from audit.attest.waivers import Stated
from audit.evidence.records import ArmRecord, RequestRecord
from audit.gate.serving_profile import SampledSetting, setting_of
from audit.store import RunStatus, StoredArm, StoredCheck, StoredRun
from audit.store.reading.reader import Attempt
from audit.store.reading.watches import StoredWatch, WatchReading
from engine.record.effective import Effective
from engine.record.trace import TraceHeader

STREAMS: Final = ("streamed", "both")
OPEN_BELOW: Final = 0.95
"""A sampled token with p below this was a choice."""


@dataclass(frozen=True, slots=True)
class SampledRequests:
    """The requests of an arm at one setting; `choices` are tokens that p left open, None if the record has no p."""

    setting: SampledSetting
    requests: int
    choices: int | None


@dataclass(frozen=True, slots=True)
class ArmWorkload:
    """Counts of one arm's answered requests.

    longest: most tokens of a prompt and its answer together.
    sampled: requests at temperatures above 0, by their setting.
    features: kinds of requests (`serving_profile.SERVABLE`) that it answered.
    """

    requests: int
    tokens: int
    prompts: int
    domains: frozenset[str]
    longest: int
    sampled: tuple[SampledRequests, ...]
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: tuple[int, ...]
    domain: str
    tokens: int
    setting: SampledSetting
    choices: int | None
    features: frozenset[str]


def workload_of(record: ArmRecord) -> ArmWorkload:
    """Count the requests of an arm's workload; reads every trace once."""
    listed = [_read(request, record.effective) for request in record.keeping().requests]
    settings = dict.fromkeys(request.setting for request in listed if request.setting.temperature)
    return ArmWorkload(
        requests=len(listed),
        tokens=sum(request.tokens for request in listed),
        prompts=len({request.prompt for request in listed}),
        domains=frozenset(request.domain for request in listed),
        longest=max((len(request.prompt) + request.tokens for request in listed), default=0),
        sampled=tuple(_at(setting, [item for item in listed if item.setting == setting]) for setting in settings),
        features=frozenset().union(*(request.features for request in listed)),
    )


def _read(request: RequestRecord, effective: Effective) -> _Request:
    header, p = request.trace.header, request.trace.p
    return _Request(
        tuple(header.prompt),
        request.domain,
        len(request.tokens),
        setting_of(header.sampling),
        choices=int((p < OPEN_BELOW).sum()) if p.size else None,
        features=frozenset(_features(header, effective)),
    )


def _features(header: TraceHeader, effective: Effective) -> Iterator[str]:
    """The kinds of requests that this one is of; an endpoint states streams and log-probabilities by the arm."""
    facts, stream = header.facts, header.facts.get("stream") or {}
    asked = (facts.get("request") or {}).get("effective") or {}
    kinds = {
        "greedy": not header.sampling.temperature,
        "structured": header.sampling.structured is not None,
        "tools": facts.get("tools"),
        "filters": stream.get("filters"),
        "streaming": stream or effective.facts.get("stream") in STREAMS,
        "logprobs": effective.facts.get("logprobs") or asked.get("logprobs"),
        "adapters": asked.get("adapter") is not None,
    }
    return (kind for kind, shown in kinds.items() if shown)


def _at(setting: SampledSetting, requests: Sequence[_Request]) -> SampledRequests:
    known = [request.choices for request in requests if request.choices is not None]
    return SampledRequests(setting, len(requests), sum(known) if known else None)


@dataclass(frozen=True, slots=True)
class CheckParameters:
    """The parameters with which a check judged an arm, and the check's defaults."""

    used: Mapping[str, Any]
    defaults: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SignedEnding:
    """Whether a trusted key signed a log that holds the run's ending; `problem` says why not, `by` who signed.

    sha256: of the checkpoint or proof that was read.
    """

    by: str | None = None
    problem: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class SeriesAlarm:
    """An alarm of a watch: stored with a reading, or recomputed from the series."""

    model: str
    direction: str
    at: datetime


@dataclass(frozen=True, slots=True)
class WatchedSeries:
    """A watch of the store, with the readings and alarms of the time that the policy asks about."""

    watch: StoredWatch
    readings: tuple[WatchReading, ...]
    alarms: tuple[SeriesAlarm, ...]


@dataclass(frozen=True, slots=True)
class WatchFacts:
    """Stored facts of live servers.

    bounds: by drafting candidate arm, the rate with which a watch of it compares before any tolerance.
    series: the watches that may count for the run.
    others: the number of further watches in the store.
    """

    bounds: Mapping[str, float]
    series: tuple[WatchedSeries, ...]
    others: int = 0


UNSIGNED: Final = SignedEnding()
NOTHING: Final = Stated()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of a run from the store and its record.

    broken: places where the record or the log is damaged.
    coverage: by arm and situation, how often each of the arm's certifying checks examined it, at least; absent
        situations count as 0. The record of an absent arm states no coverage.
    workloads: what each candidate arm was asked; missing where nobody read it.
    parameters: by arm and check.
    begun: the moment in the run's id, which the record root covers; None for an id that is not one.
    trusted: nobody computed the verdicts from the record, because the caller trusts them as they are stored.
    remarks: lines that the decision must state.
    stated: signed waivers and reviews of the run; whether they count is for the policy to say.
    watches: None where nobody read them: the policy asks for none, or the record is a bundle's.
    attempts: the other runs of the suite with these models in the store.
    unlisted: why bundles that the record came in may lack a signed statement.
    """

    run: StoredRun
    checks: Sequence[StoredCheck]
    broken: tuple[str, ...] = ()
    coverage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    workloads: Mapping[str, ArmWorkload] = field(default_factory=dict)
    parameters: Mapping[str, Mapping[str, CheckParameters]] = field(default_factory=dict)
    begun: datetime | None = None
    ending: SignedEnding = UNSIGNED
    trusted: bool = False
    remarks: tuple[str, ...] = ()
    stated: Stated = NOTHING
    watches: WatchFacts | None = None
    attempts: tuple[Attempt, ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """True if the run ended as it should and has a record root."""
        return self.run.status is RunStatus.FINISHED and self.run.record_root is not None

    @property
    def candidates(self) -> tuple[StoredArm, ...]:
        """The arms under audit."""
        return self.run.candidates
