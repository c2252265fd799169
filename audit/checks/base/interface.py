"""The interface of a check, and the functions that run it.

A check is a pure function of evidence: same evidence and parameters, same
result. It never loads a model and never reads a file.

A request whose record cannot be read, because the writer refused it or a pass along it could not follow it, is a fault
of its arm: of check `accounting`, or of every check that compares with the pass. The other requests keep what they
show, but no check certifies an arm of which it could not read a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from audit.evidence.coverage.groups import Examined, Group
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import LACKING, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.sample_size import SampleSize
from engine.backends.evidence import ArmEvidence, Part
from engine.core import types
from engine.core.errors import EngineError
from engine.core.types import RecordLevel
from engine.record.effective import LoopOwner
from engine.stream.interface import StreamSpec

if TYPE_CHECKING:
    from audit.evidence.reading import RequestReading

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
PASSES: Final = {ArmKind.ANCHOR: "anchored", ArmKind.REREAD: "read again", ArmKind.REDRAFT: "drafted again"}
"""The passes along the candidate's own record; the noise arm follows the baseline's."""
UNJUDGED: Final = "a recorded value cannot be computed with"
OWNER: Final = "accounting"
"""The check that owns the records that could not be written."""


def with_unreadable(
    check: str, companions: tuple[ArmKind, ...], evidence: Evidence, result: CheckResult
) -> CheckResult:
    """The result of a check, given the requests that it could not see because of their record."""
    findings = [
        Finding(f"{evidence.candidate.name}/{key}", 0, f"the record cannot be {PASSES[kind]}: {reason}")
        for kind in companions
        if kind in PASSES and kind in evidence.companions
        for key, reason in evidence.companions[kind].unreadable.items()
    ]
    unwritten = [
        Finding(f"{evidence.candidate.name}/{key}", 0, f"the record cannot be written: {reason}")
        for key, reason in evidence.candidate.unreadable.items()
    ]
    if check == OWNER:
        findings += unwritten
    result = broken(findings, result)
    if unwritten and result.verdict is Verdict.CERTIFIED:
        first = unwritten[0]
        text = f"{len(unwritten)} requests are unreadable, first {first.request}: {first.message}; {result.summary}"
        return replace(result, verdict=Verdict.INCONCLUSIVE, summary=text)
    return result


def broken(findings: list[Finding], result: CheckResult) -> CheckResult:
    """The result with requests whose record is at fault; unchanged without any."""
    if not findings:
        return result
    first = findings[0]
    text = f"{len(findings)} requests are unreadable, first {first.request}: {first.message}"
    return replace(
        result,
        verdict=Verdict.FAULT,
        summary=f"{text}; {result.summary}" if result.summary else text,
        findings=(*findings, *result.findings),
        details={**result.details, "unreadable": len(findings)},
    )


@dataclass(frozen=True, slots=True)
class PlanAssumptions:
    """Assumptions of a plan for one arm and check; None keeps the check's default."""

    spread: float | None = None
    """Standard deviation of the estimate behind the bound, per unit, in the margin's unit."""
    scarcest: float | None = None
    """Share of the units that are of the scarcest kind, where the margin holds for each kind."""


NOTHING_ASSUMED = PlanAssumptions()
NO_KEY = "another engine drew the random numbers: no key gives them; law, honoured and q_contract judge without"
"""Reason why an engine's random numbers cannot be recomputed."""
LOSSY = "the verifier declares itself lossy; what it emits is not meant to follow the target's law"
NO_GRAMMAR = "no request has a grammar"
NO_ANCHOR = NoEvidence("there is no anchor arm: the backend has no reference pass over given tokens")
EVERYTHING = ArmEvidence(
    LoopOwner.OWN, 4, frozenset(Part) - {Part.IDENTITY}, types.Protocol.CHAIN, drawn=True, promises="everywhere"
)
"""Declared evidence of a sampled arm on the native engine: every part but a service's is recorded."""


@dataclass(frozen=True, slots=True)
class Design:
    """Everything known about an arm before it runs. `shown` is the evidence that its backend declares."""

    requests: int
    prompts: int
    tokens: int
    """Upper limit; requests that end early give fewer."""
    gamma: int
    greedy: bool
    level: Level
    record: RecordLevel = RecordLevel.FULL
    shown: ArmEvidence = EVERYTHING
    structured: bool = False
    """Requests have a grammar."""
    assumed: PlanAssumptions = NOTHING_ASSUMED
    offers: int = 0
    """Requests that offer tools."""
    stream: StreamSpec | None = None
    """The filters of an arm that records its text as it leaves."""

    @property
    def repeats(self) -> bool:
        """True if the tokens depend on the target and the seed only."""
        return self.greedy or self.shown.protocol is types.Protocol.GUMBEL

    @property
    def keyed(self) -> bool:
        """True if every random number of the arm comes from a key, or none is drawn."""
        return self.greedy or self.shown.decoder is LoopOwner.OWN


def always_applies(_params: Params, _design: Design) -> None:
    """`foresee` of a check that applies to every arm with requests."""


def never_excused(_evidence: Evidence) -> None:
    """`applies` of a check that every arm has evidence for."""


def needs_nothing(_params: Params, _design: Design) -> None:
    """`plan` of a check that can decide on any amount of evidence, or whose need only the evidence itself shows."""


def needs_key(evidence: Evidence) -> str | None:
    """`applies` of a check that recomputes the decisions of a lossless rule from their random numbers."""
    if not evidence.candidate.keyed:
        return NO_KEY
    return None if all(request.trace.header.lossless for request in evidence.candidate.requests) else LOSSY


def foresees_key(_params: Params, design: Design) -> str | None:
    """`foresee` of such a check."""
    if not design.keyed:
        return NO_KEY
    return None if design.shown.lossless else LOSSY


def needs_anchor(evidence: Evidence) -> str | None:
    """`applies` of a check that compares with the anchor arm."""
    return None if ArmKind.ANCHOR in evidence.companions else NO_ANCHOR


def gives(part: Part, reason: str) -> Callable[[Params, Design], str | None]:
    """`foresee` of a check that needs a part of the evidence; `reason` says why it is missing."""
    return lambda _params, design: None if design.shown.gives(part) else reason


needs_reference: Final = gives(Part.REFERENCE, NO_ANCHOR)
"""`foresee` of a check that compares with the anchor arm."""


def examine_all(_evidence: Evidence) -> Examined:
    """`examines` of a check that looks at every emitted token."""
    # imported late: commands that compute nothing know the checks too
    from audit.evidence.coverage.count import every_token

    return every_token


def accept_all(_params: Params) -> None:
    """`accept` of a check whose parameters are numbers within their ranges (`audit.checks.base.ranges`)."""


class Deciding(Protocol[P_contra]):
    """A check's decision on an arm, while the arm is read."""

    def add(self, part: P_contra) -> None:
        """Take the next request's part; requests come in the order of the arm."""

    def result(self) -> CheckResult:
        """The result on all of them; called once, at the end."""


@dataclass(frozen=True, slots=True)
class ByRequest(Generic[P]):
    """A check in two halves, so that several checks share one reading of an arm, in one process or in more.

    `read` is a pure function of a request and of the facts of its arm, and its result can be pickled. `begin` gives the
    half that takes these results in order; only that half may use random numbers or another arm.
    """

    read: Callable[[RequestReading], P]
    begin: Callable[[Evidence, Params], Deciding[P]]

    def run(self, evidence: Evidence, params: Params) -> CheckResult:
        """Read the candidate for this check alone."""
        # imported late: commands that compute nothing know the checks too
        from audit.evidence.reading import RequestReading

        deciding = self.begin(evidence, params)
        for request in evidence.candidate.requests:
            deciding.add(self.read(RequestReading(request, evidence.candidate)))
        return deciding.result()


@dataclass(frozen=True, slots=True)
class ReadPart(Generic[P]):
    """A request as a check reads it: why it cannot, or what the check takes of it."""

    unreadable: str | None
    taken: P | None


def read_part(take: Callable[[RequestReading], P], reading: RequestReading) -> ReadPart[P]:
    """The part of a readable request that a check takes."""
    if reading.unreadable is not None:
        return ReadPart(reading.unreadable, None)
    return ReadPart(None, take(reading))


@dataclass(frozen=True, slots=True)
class Check:
    """A named instrument.

    `defaults` holds all parameters with their default values; a suite may override these names only. `applies` returns
    why the check does not apply to an arm, or None (see `NoEvidence` for the two kinds of reasons); `foresee` answers
    the same before the arm has run, from the suite and the backend's declared evidence. `null` is the hypothesis under
    test, `effect` the unit of effect, bound and margin. `plan` computes how much evidence the margin needs before a
    model is loaded, or None if any amount is enough. The parameters `alpha` and `confidence` are error probabilities: a
    run with interim looks divides them over its looks, unless the check is `anytime`, that is, valid at every look. A
    check with `failures` also judges an arm without any answered request. A check with `external` judges reports that
    only other engines make about themselves.
    """

    name: str
    claim: str
    run: Callable[[Evidence, Params], CheckResult]
    null: str
    effect: str
    needs: Level = Level.L0
    defaults: Params = field(default_factory=dict)
    applies: Callable[[Evidence], str | None] = never_excused
    plan: Callable[[Params, Design], SampleSize | None] = needs_nothing
    companions: tuple[ArmKind, ...] = ()
    """Further arms for comparison; they run only if a check requests them."""
    anytime: bool = False
    failures: bool = False
    external: bool = False
    foresee: Callable[[Params, Design], str | None] = always_applies
    covers: frozenset[Group] = frozenset()
    """Groups of situations that the claim is about; empty for a claim that is not about speculation."""
    accept: Callable[[Params], object] = accept_all
    """Raises a `UserError` for parameters that the check cannot use, before anything runs."""
    examines: Callable[[Evidence], Examined] = examine_all
    """The tokens of the candidate that the check examines: an occurrence elsewhere does not count."""
    by_request: ByRequest[Any] | None = None
    """The two halves of `run`, for a check that has them."""
    settle: Callable[[CheckResult, Mapping[str, Verdict]], CheckResult] | None = None
    """The final result given the verdicts of the arm's other checks, for a check that needs them."""

    @property
    def statistical(self) -> bool:
        """True if it tests a law or measures figures of the workload, so that directed requests do not count."""
        return "alpha" in self.defaults or self.claim in ("acceptance", "cost")

    def seen(self, evidence: Evidence) -> Evidence:
        """The part of an arm's evidence that the check judges."""
        return evidence.of_workload() if self.statistical and evidence.candidate.directed else evidence


def foreseen(check: Check, params: Params, design: Design) -> str | None:
    """Why a check will end `not_run`, or None: the counterpart of `evaluate` before the run."""
    if design.level < check.needs:
        level = f"needs evidence {check.needs.name}, record {design.record} gives {design.level.name}"
        return _outranking(check.foresee(params, design)) or NoEvidence(level)
    return check.foresee(params, design)


def evaluate(check: Check, evidence: Evidence, overrides: Params) -> CheckResult:
    """Run a check with its defaults and a suite's overrides.

    Evidence below the level that the check needs gives `not_run`, never a pass.
    """
    evidence = check.seen(evidence)
    reason = excuse(check, evidence)
    if reason is not None:
        return not_run(reason)
    result = run_or_fault(check, evidence, {**check.defaults, **overrides})
    return with_unreadable(check.name, check.companions, evidence, result)


def run_or_fault(check: Check, evidence: Evidence, params: Params) -> CheckResult:
    """A check's result; a fault where it cannot compute with a recorded value, such as a row that gives no law."""
    try:
        return check.run(evidence, params)
    except EngineError as error:
        return CheckResult(Verdict.FAULT, f"{UNJUDGED}: {error}")


def excuse(check: Check, evidence: Evidence) -> str | None:
    """Why a check does not run on this evidence, or None."""
    judges = check.failures or (check.name == OWNER and evidence.candidate.unreadable)
    if not len(evidence.candidate.requests) and len(evidence.candidate.failed) and not judges:
        return NoEvidence("no request was answered; see the liveness check")
    reason = check.applies(evidence)
    if evidence.candidate.level < check.needs:
        have, need = evidence.candidate.level.name, check.needs.name
        return _outranking(reason) or NoEvidence(f"needs evidence {need}, the arm has {have}")
    return reason


def _outranking(reason: str | None) -> str | None:
    """The reason if it stands whatever the evidence level: the claim does not exist for the arm."""
    return None if isinstance(reason, NoEvidence) else reason


def not_run(reason: str) -> CheckResult:
    """The result of a check that did not run."""
    details = {LACKING: True} if isinstance(reason, NoEvidence) else {}
    return CheckResult(Verdict.NOT_RUN, str(reason), details=details)
