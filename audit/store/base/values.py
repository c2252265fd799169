"""Frozen values that the store accepts and returns.

Moments are aware datetimes in UTC, digests hex SHA-256.

Finds requests of a run by the names that findings and people use.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from audit.errors import UserError
from audit.evidence.environment import Environment
from audit.evidence.records import ArmKind, Level, is_directed
from audit.evidence.verdicts import LACKING, CheckResult, Finding, Verdict
from audit.store.base.canonical import sha256_json
from engine.record.effective import Effective

Json = Mapping[str, Any]
ENDS: Final = re.compile(
    r"allow: (?!waivers: |reviews: review )[ -~]{1,120}?: (?:waived|counts) until "
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC\b"
)
"""Beginning of a recorded reason that rests on a signed waiver or review with an end; not one that did not count."""
SERVES: Final = re.compile(r"allow: serves: ([a-z]+(?:, [a-z]+)*|sha256:[0-9a-f]{64}) alone, of ")
"""Beginning of the recorded remark that a decision is for a deployment that serves less than the policy lists."""


class RunStatus(StrEnum):
    """Status of a run; only a `running` one accepts requests."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """An artifact of a run.

    `kind` is target, draft, gguf, tokenizer, suite or policy; `role` is its use in the
    run; `name` and `role` together are unique in a run.
    """

    kind: str
    role: str
    name: str
    revision: str | None
    sha256: str
    manifest: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewArm:
    """One arm before it ran: `spec` is the requested configuration, `effective` the actual one."""

    name: str
    kind: ArmKind
    level: Level
    spec: Json
    effective: Effective
    lossless: bool


@dataclass(frozen=True, slots=True)
class RunReason:
    """Why a run was made: in words, and the ticket that asked for it."""

    purpose: str | None = None
    ticket: str | None = None


@dataclass(frozen=True, slots=True)
class NewRun:
    """Everything known at the start of a run."""

    suite_name: str
    suite_sha256: str
    suite_document: Json
    artifacts: tuple[ArtifactRef, ...]
    environment: Environment
    actor: str
    code_commit: str | None
    arms: tuple[NewArm, ...]
    reason: RunReason = RunReason()


@dataclass(frozen=True, slots=True, order=True)
class RequestKey:
    """Key of a request within a run."""

    arm: str
    case_id: str
    sample: int

    @property
    def short(self) -> str:
        """CASE#SAMPLE, the same in every arm."""
        return f"{self.case_id}#{self.sample}"

    @property
    def name(self) -> str:
        """ARM/CASE#SAMPLE, the form that findings use."""
        return f"{self.arm}/{self.short}"


class CountSource(StrEnum):
    """Origin of an arm's numbers of steps, drafted and accepted tokens."""

    RECORD = "record"
    """The recorded steps."""
    ANSWERS = "answers"
    """The server's accounts in its answers."""
    COUNTERS = "counters"
    """The growth of the server's counters, which include its other clients."""
    SERVER = "server"
    """The server states that it does not speculate."""
    UNKNOWN = "unknown"


class Resolution(StrEnum):
    """The unit that a number belongs to."""

    STEP = "step"
    REQUEST = "request"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class ArmCounts:
    """Sums over the suite's own requests in an arm; the reader derives rates.

    Steps, drafted and accepted are None where unknown. The counters of a server do not tell directed requests apart.
    """

    requests: int = 0
    prompt: int = 0
    output: int = 0
    steps: int | None = 0
    drafted: int | None = 0
    accepted: int | None = 0
    latency_us: int = 0
    source: CountSource = CountSource.RECORD
    resolution: Resolution | None = Resolution.STEP
    directed: int = 0
    """Requests beside them that the auditor added."""
    directed_output: int = 0


@dataclass(frozen=True, slots=True)
class StoredArm:
    """One arm of a stored run, without its requests. `fault` says how the arm is broken on purpose, if it is."""

    name: str
    kind: ArmKind
    level: Level
    lossless: bool
    spec: Json
    effective: Effective
    counts: ArmCounts
    fault: str | None = field(init=False)

    def __post_init__(self) -> None:
        """Read `fault` from the requested configuration, else from the effective one, where a backend has its own."""
        object.__setattr__(self, "fault", self.spec.get("fault") or self.effective.fault)

    @property
    def configuration_sha256(self) -> str:
        """Digest of the effective configuration, by which a deployment names its engine's settings."""
        return sha256_json(self.effective.to_json())


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Counts of one version of a draft that learns, in one arm."""

    arm: str
    number: int
    sha256: str
    steps: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One change of a run's state."""

    status: RunStatus
    at: datetime
    detail: str


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A stored run without its requests."""

    ulid: str
    suite_name: str
    suite_sha256: str
    suite_document: Json
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None
    actor: str
    code_commit: str | None
    artifacts: tuple[ArtifactRef, ...]
    environment: Environment
    arms: tuple[StoredArm, ...]
    events: tuple[StoredEvent, ...]
    tokens: int | None
    """Tokens generated in all arms; None until the run is finished."""
    record_root: str | None
    content_root: str | None
    exit_code: int | None
    reason: RunReason = RunReason()

    @property
    def candidates(self) -> tuple[StoredArm, ...]:
        """The arms under audit."""
        return tuple(arm for arm in self.arms if arm.kind is ArmKind.CANDIDATE)

    def arm(self, name: str) -> StoredArm | None:
        """The arm of that name, if the run has it."""
        return next((arm for arm in self.arms if arm.name == name), None)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of a list of runs. `verdicts` counts the checks by verdict."""

    ulid: str
    suite_name: str
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None
    arms: int
    requests: int
    tokens: int | None
    verdicts: Mapping[Verdict, int]
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class StoredCheck:
    """A check's result as stored."""

    arm: str
    check: str
    claim: str
    level: Level
    verdict: Verdict
    n: int
    statistic: float | None
    p_value: float | None
    effect: float | None
    bound: float | None
    margin: float | None
    summary: str
    findings: tuple[Finding, ...]
    details: Json
    created_at: datetime
    erased: int = 0
    """Number of findings that were erased."""

    @property
    def lacking(self) -> bool:
        """True if the check is `not_run` for want of evidence; False where its claim does not exist for the arm."""
        return bool(self.details.get(LACKING))


@dataclass(frozen=True, slots=True)
class SituationCount:
    """A situation in one arm: its occurrences, and those that one check examined.

    `least` is the number that the check had to examine; None if the arm's settings do not ask for the situation.
    """

    situation: str
    occurred: int
    examined: int
    least: int | None


@dataclass(frozen=True, slots=True)
class NewCheck:
    """A check's result on one arm, with what it examined. `level` is that of the evidence."""

    arm: str
    name: str
    claim: str
    level: Level
    result: CheckResult
    coverage: tuple[SituationCount, ...] = ()


@dataclass(frozen=True, slots=True)
class NewJudgement:
    """Results of judging a finished run again, by whom, and with which code."""

    actor: str
    environment: Environment
    checks: tuple[NewCheck, ...]


@dataclass(frozen=True, slots=True)
class StoredJudgement:
    """A later judgement of a run, without its results; `code` and `packages` are those of its environment."""

    number: int
    actor: str
    created_at: datetime
    code: Json
    packages: Json


@dataclass(frozen=True, slots=True)
class StoredCoverage:
    """A situation in one arm, as the last result of one check examined it (`SituationCount`)."""

    arm: str
    check: str
    situation: str
    occurred: int
    examined: int
    least: int | None

    @property
    def short(self) -> bool:
        """True if the check examined the situation too rarely."""
        return self.least is not None and self.examined < self.least


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A gate's decision. `run` is None if the decision is on no stored run."""

    run: str | None
    policy_sha256: str
    policy: Json
    decision: str
    reasons: tuple[str, ...]
    actor: str
    created_at: datetime

    @property
    def sha256(self) -> str:
        """Digest of all of it, for a signed statement."""
        return sha256_json(asdict(self))

    @property
    def serves(self) -> frozenset[str] | None:
        """The words, or a profile's digest, that alone a deployment may serve by it; None for the policy's list."""
        stated = (match[1] for reason in self.reasons if (match := SERVES.match(reason)))
        return next((frozenset(text.split(", ")) for text in stated), None)

    @property
    def until(self) -> datetime | None:
        """End of the first waiver or review that the decision rests on, as its reasons state it; None without one."""
        stated = [match[1] for reason in self.reasons if (match := ENDS.match(reason))]
        return min((datetime.fromisoformat(f"{text}+00:00") for text in stated), default=None)


@dataclass(frozen=True, slots=True)
class Attachment:
    """Evidence bound to a report: `report_before` and `report_after` are the report's digests."""

    run: str
    report_before: str
    report_after: str
    format: str
    location: str
    statement: Json
    created_at: datetime


def requests_named(run: str, keys: Sequence[RequestKey], name: str) -> list[RequestKey]:
    """The requests named ARM/CASE#SAMPLE, or CASE#SAMPLE in any arm, in the order of `keys`.

    Raises:
        UserError: none has that name.
    """
    result = [key for key in keys if name in (key.name, key.short)]
    if not result:
        first = min(keys, key=lambda key: is_directed(key.case_id)).name if keys else "none"
        raise UserError(f"run {run} has no request {name!r}; write one as findings do, such as {first}")
    return result


@dataclass(frozen=True, slots=True)
class IntegrityViolation:
    """One place where the store changed after the run finished."""

    place: str
    message: str
