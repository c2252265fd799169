"""Messages between a coordinating process and its workers: the job, its parts, and the outcome of each part.

All of it can be pickled. A worker prepares the suite by itself and compares what it finds with the coordinator's, so
that no request is decoded by other models, packages or settings.

An executor starts workers somewhere and gives them parts; it knows nothing of arms, stores and retries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from audit.evidence.environment import Environment
from audit.runs.prepare import PreparedRun, artifacts
from audit.runs.surroundings import differences
from audit.store import NewRequest, RequestKey
from audit.suite.allowances import Allowances


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Facts that all processes of a run share. `digests` by role, `arms` the effective configurations by name."""

    digests: Mapping[str, str]
    environment: Environment
    arms: Mapping[str, Any]

    def differences(self, other: RunIdentity) -> Iterator[str]:
        """Differences of another process, in words."""
        yield from (f"{role} differs" for role, digest in self.digests.items() if other.digests.get(role) != digest)
        yield from differences(self.environment, other.environment)
        for name, effective in self.arms.items():
            if other.arms.get(name) != effective:
                yield f"arm {name} has another effective configuration"


def identity_of(prepared: PreparedRun) -> RunIdentity:
    """The identity of a run in this process."""
    return RunIdentity(
        digests={used.role: used.sha256 for used in artifacts(prepared)},
        environment=prepared.environment,
        arms={arm.planned.name: without_places(arm.effective.to_json()) for arm in prepared.arms},
    )


def without_places(value: Any) -> Any:
    """A configuration without the paths of models, which differ with the current folder; their digests stay."""
    if not isinstance(value, Mapping):
        return value
    dropped = ("source", "resolved") if "model_sha256" in value else ()
    return {key: without_places(item) for key, item in value.items() if key not in dropped}


@dataclass(frozen=True, slots=True)
class Job:
    """Input of a worker to prepare the suite: the path of its file, threads of torch, allowances."""

    suite: Path
    threads: int
    allowed: Allowances
    identity: RunIdentity


def job_of(prepared: PreparedRun, threads: int, allowed: Allowances) -> Job:
    """The job of a prepared run."""
    return Job(Path(prepared.suite.path).resolve(), threads, allowed, identity_of(prepared))


@dataclass(frozen=True, slots=True)
class ArmPiece:
    """Requests of one arm that one worker decodes in order; `read` is what the candidate of a reading arm emitted."""

    arm: str
    keys: tuple[RequestKey, ...]
    read: tuple[NewRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkPart:
    """Work for one worker at a time. `number` is unique in a run of the coordinator."""

    number: int
    pieces: tuple[ArmPiece, ...]

    @property
    def name(self) -> str:
        """Arms and number of requests, for messages."""
        arms = ", ".join(dict.fromkeys(piece.arm for piece in self.pieces))
        return f"{sum(len(piece.keys) for piece in self.pieces)} requests of {arms}"


@dataclass(frozen=True, slots=True)
class PartDone:
    """The requests of a part, in the order in which they finished; `memories` are lines about engines that remember."""

    part: WorkPart
    requests: tuple[NewRequest, ...]
    memories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A worker that lives cannot do the part, and no other could: an engine's error, or another environment."""

    part: WorkPart
    message: str


@dataclass(frozen=True, slots=True)
class PartLost:
    """The worker died; another one may do the part."""

    part: WorkPart
    reason: str


PartOutcome = PartDone | PartFailed | PartLost


class WorkerPool(Protocol):
    """Workers that take parts while they live. A pool replaces a worker that died."""

    def room(self) -> bool:
        """True if a worker is free."""

    def submit(self, part: WorkPart) -> None:
        """Give a part to a free worker."""

    def wait(self) -> PartOutcome:
        """The next outcome of a submitted part."""


class Executor(Protocol):
    """One way to start workers."""

    whole_jobs: bool
    """True if a worker lives for one part only, so that parts should be few."""

    def pool(self, job: Job, workers: int) -> AbstractContextManager[WorkerPool]:
        """Workers for a job, which end with the context. Raises UserError: workers cannot be started."""
