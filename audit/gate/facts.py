"""The facts that a decision rests on, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from audit.attest.waivers import Stated
from audit.gate.workload import ArmWorkload
from audit.store import RunStatus, StoredArm, StoredCheck, StoredRun
from audit.store.reading.watches import StoredWatch, WatchReading


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
    remarks: lines that the decision must state.
    stated: signed waivers and reviews of the run; whether they count is for the policy to say.
    watches: None where nobody read them: the policy asks for none, or the record is a bundle's.
    """

    run: StoredRun
    checks: Sequence[StoredCheck]
    broken: tuple[str, ...] = ()
    coverage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    workloads: Mapping[str, ArmWorkload] = field(default_factory=dict)
    parameters: Mapping[str, Mapping[str, CheckParameters]] = field(default_factory=dict)
    begun: datetime | None = None
    ending: SignedEnding = UNSIGNED
    remarks: tuple[str, ...] = ()
    stated: Stated = NOTHING
    watches: WatchFacts | None = None

    @property
    def finished(self) -> bool:
        """True if the run ended as it should and has a record root."""
        return self.run.status is RunStatus.FINISHED and self.run.record_root is not None

    @property
    def candidates(self) -> tuple[StoredArm, ...]:
        """The arms under audit."""
        return self.run.candidates
