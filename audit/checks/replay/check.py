"""Replay: every decision of every step, recomputed from the record alone.

Claim: replay. Null: the engine's decisions follow its declared protocol, given the recorded rows and the numbers of its
key. Statistic: the number of decisions that differ; any is a fault. Effect and bound: the share of differing decisions
and its 99 % Clopper-Pearson upper bound. Assumes that the record is complete and holds what the engine used. Cannot
see: whether the recorded rows belong to the prefix, or anything that the engine did not record. Shares
`engine.sampling.transforms` and `engine.sampling.rng` with the engine, so it cannot see a fault in those two.

Compare the recorded digests of a trace with its rows.

Versions of a draft that learns while it serves are one chain that starts at the configured draft. Within a request a
version's number never falls and its digest is that of its parent and its update. Within an arm every version descends,
update by update, from the version in the effective configuration; a resumed run restarts that chain, so an arm may hold
several. Whether an update's digest matches the learnt weights is not seen, because the record does not hold them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from audit.checks.base.interface import ByRequest, Check, foresees_key, needs_key
from audit.checks.base.plans import plan_replay
from audit.checks.replay.full import lacks_p, replay_full
from audit.checks.replay.kept_rows import KeptCheck, check_kept, wrong_share
from audit.checks.replay.partial import replay_partial
from audit.evidence.coverage.groups import Group
from audit.evidence.reading import RequestReading
from audit.evidence.records import ArmRecord, Evidence, Level, RequestRecord
from audit.evidence.structure import Violation
from audit.evidence.verdicts import CheckResult, Finding, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.multiplicity import percent
from engine.core.types import RecordLevel
from engine.core.versions import DraftVersion
from engine.record.rows.row_digests import digests
from engine.record.trace import Trace


def version_faults(trace: Trace) -> Iterator[Violation]:
    """Violations within one request; the trace's columns are well-formed."""
    listed = {version.number: version for version in trace.header.draft_versions}
    if not len(trace.draft_version):
        if listed:
            yield Violation(0, "draft versions are listed, but no step says which one drafted")
        return
    numbers = trace.draft_version.tolist()
    for step, (before, now) in enumerate(pairwise(numbers), start=1):
        if now < before:
            yield Violation(step, f"draft version {now} drafted after version {before}")
    for step, number in enumerate(numbers):
        if number not in listed:
            yield Violation(step, f"draft version {number} is not one of those that the record lists")
    for item in listed.values():
        if not item.sound:
            yield Violation(_first(trace, item), f"{_named(item)} does not have the digest of its parent and update")


def unknown_versions(arm: ArmRecord) -> dict[str, tuple[Violation, ...]]:
    """By request id, a violation for each version that does not descend from the arm's configured draft."""
    configured = arm.effective.draft_version
    known = _descendants(arm, configured)
    result = {request.request_id: tuple(_strangers(request, known, configured)) for request in arm.requests}
    return {name: faults for name, faults in result.items() if faults}


def _descendants(arm: ArmRecord, configured: object) -> frozenset[DraftVersion]:
    """The configured version and all its descendants by recorded updates."""
    recorded = {version for request in arm.requests for version in request.trace.header.draft_versions}
    known = {item for item in recorded if item.number == 0 and item.digest == configured}
    for one in sorted(recorded - known, key=lambda version: version.number):
        if any((one.number - 1, one.parent) == (parent.number, parent.digest) for parent in known):
            known.add(one)
    return frozenset(known)


def _strangers(request: RequestRecord, known: frozenset[DraftVersion], configured: object) -> Iterator[Violation]:
    trace = request.trace
    if configured is not None and trace.steps and not len(trace.draft_version):
        yield Violation(0, "the arm's draft learns, but the record does not say which version drafted")
    for version in trace.header.draft_versions:
        if version not in known:
            yield Violation(
                _first(trace, version), f"{_named(version)} does not descend from the arm's configured draft"
            )


def _first(trace: Trace, version: DraftVersion) -> int:
    """The version's first step, 0 if none."""
    steps = np.flatnonzero(trace.draft_version == version.number)
    return int(steps[0]) if len(steps) else 0


def _named(version: DraftVersion) -> str:
    return f"draft version {version.number} ({version.digest[:12]})"


def digest_faults(trace: Trace) -> Iterator[Violation]:
    """A violation for each row with another digest; the trace's columns are well-formed.

    Below `full` there are no rows to compare.
    """
    if trace.header.level is RecordLevel.FULL:
        ends = np.cumsum(trace.n_emitted, dtype=np.int64)
        for at in np.flatnonzero(trace.logits_digest != digests(trace.logits)):
            step = int(np.searchsorted(ends, at, side="right"))
            yield Violation(step, f"token {int(trace.token[at])}: the recorded row does not have the recorded digest")


NO_KEPT = KeptCheck(0, 0, ())
LACKS_P = Violation(0, "no probability of a token is on record")


@dataclass(frozen=True, slots=True)
class _Replayed:
    request: str
    decisions: int
    recomputed: int
    faults: tuple[Violation, ...]
    kept: KeptCheck = NO_KEPT
    readable: bool = True


def _replay(reading: RequestReading) -> _Replayed:
    request, trace = reading.request, reading.request.trace
    damaged = () if request.intact else (Violation(0, "the stored record no longer has the digest stored with it"),)
    if reading.shape_fault is not None:
        faults = (*damaged, Violation(0, reading.shape_fault))
        return _Replayed(request.request_id, max(1, len(trace.token)), 0, faults, readable=False)
    kept = check_kept(trace)
    full = trace.header.level is RecordLevel.FULL
    tally = replay_full(trace) if full else replay_partial(trace, lambda _: reading.decisions)
    # decisions first: a wrong decision explains the contradictions that follow from it
    faults = (
        *damaged,
        *tally.faults,
        *digest_faults(trace),
        # a wrong number changes the choice, so that others would hide its own finding
        *(() if tally.faults else kept.faults),
        *reading.structure_faults,
        *version_faults(trace),
        *((LACKS_P,) if full and reading.arm.ours and lacks_p(trace) else ()),
    )
    return _Replayed(request.request_id, tally.decisions, tally.recomputed, _by_step(faults), kept)


def _by_step(faults: Iterable[Violation]) -> tuple[Violation, ...]:
    return tuple(sorted(faults, key=lambda item: item.step))


class _Replaying:
    """The replays of the requests so far."""

    def __init__(self, evidence: Evidence, params: Params) -> None:
        self._params = params
        self._strange = unknown_versions(evidence.candidate)
        self._replayed: list[_Replayed] = []

    def add(self, part: _Replayed) -> None:
        """Take the replay of the next request."""
        self._replayed.append(part)

    def result(self) -> CheckResult:
        """The check's result."""
        replayed = [self._complete(item) for item in self._replayed]
        findings = [Finding(item.request, fault.step, fault.message) for item in replayed for fault in item.faults]
        return _result(replayed, findings, self._params)

    def _complete(self, replayed: _Replayed) -> _Replayed:
        """With the versions that only the arm shows to be unknown."""
        strange = self._strange.get(replayed.request, ()) if replayed.readable else ()
        return replace(replayed, faults=_by_step((*replayed.faults, *strange))) if strange else replayed


def _result(replayed: Sequence[_Replayed], findings: list[Finding], params: Params) -> CheckResult:
    decisions, recomputed = sum(item.decisions for item in replayed), sum(item.recomputed for item in replayed)
    broken = sum(1 for item in replayed if item.faults)
    violations = len(findings)
    confidence = float(params["confidence"])
    return CheckResult(
        verdict=_verdict(violations, decisions, recomputed),
        summary=_summary(violations, decisions, recomputed, findings) + _kept_summary(replayed, confidence),
        n=decisions,
        statistic=float(violations),
        effect=violations / decisions if decisions else None,
        bound=upper_bound(min(violations, recomputed), recomputed, confidence) if recomputed else 1.0,
        findings=tuple(findings[: int(params["max_findings"])]),
        details={
            "decisions": decisions,
            "recomputed": recomputed,
            "coverage": recomputed / decisions if decisions else 0.0,
            "violations": violations,
            "kept_rows": sum(item.kept.rows for item in replayed),
            "kept_of": sum(item.kept.tokens for item in replayed),
            "requests": len(replayed),
            "requests_with_violations": broken,
            "request_bound": upper_bound(broken, len(replayed), confidence) if replayed else 1.0,
        },
    )


def _kept_summary(replayed: Sequence[_Replayed], confidence: float) -> str:
    """The bound that kept rows prove for the others; empty if no record promises any, or if one is wrong."""
    rows, tokens = sum(item.kept.rows for item in replayed), sum(item.kept.tokens for item in replayed)
    if not tokens or any(item.kept.faults for item in replayed):
        return ""
    if not rows:
        return f"; none of {tokens} rows was kept whole"
    share = wrong_share(rows, tokens, confidence)
    return (
        f"; {rows} of {tokens} rows kept whole agree: at most {share:.2g} of all rows are wrong ({percent(confidence)})"
    )


def _verdict(violations: int, decisions: int, recomputed: int) -> Verdict:
    if violations:
        return Verdict.FAULT
    return Verdict.CERTIFIED if decisions and recomputed == decisions else Verdict.INCONCLUSIVE


def _summary(violations: int, decisions: int, recomputed: int, findings: list[Finding]) -> str:
    if violations:
        first = findings[0]
        more = f"; first in {first.request}, step {first.step}: {first.message}"
        return f"{violations} of {decisions} decisions differ{more}"
    if not decisions:
        return "no decision was recorded"
    if recomputed < decisions:
        return f"{recomputed} of {decisions} decisions can be recomputed at this record level, none of them differs"
    return f"all {decisions} decisions recomputed, none differs"


BY_REQUEST = ByRequest(_replay, _Replaying)
CHECK = Check(
    name="replay",
    claim="replay",
    needs=Level.L3,
    defaults={"confidence": 0.99, "max_findings": 20},
    run=BY_REQUEST.run,
    by_request=BY_REQUEST,
    applies=needs_key,
    foresee=foresees_key,
    null="the engine decided as its declared protocol says",
    effect="share of decisions that differ",
    plan=plan_replay,
    covers=frozenset({Group.DRAFTING, Group.ENDS, Group.PARAMETERS, Group.BATCH, Group.TREES}),
)
