"""Configuration: the engine runs with the requested settings.

Claim: configuration. Null: every setting that the suite requests is in effect, in the arm and in its baseline, and
every setting of a request in that request. Statistic: settings whose effective value, read from the running engine,
differs from the requested one; one is a fault, because every other verdict would then describe a different engine.
Cannot see: settings that the backend does not read back, and an engine that reports one thing and does another (see
honoured).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.checks.base.interface import Check
from audit.evidence.records import ArmRecord, Evidence
from audit.evidence.verdicts import MAX_FINDINGS, WHOLE_ARM, CheckResult, Finding, Params, Verdict
from engine.record.effective import Effective, LoopOwner
from engine.record.requests import account_of

BASELINE = "the baseline"
OURS = "the backend decodes here: it runs what it is given, or not at all"


@dataclass(frozen=True, slots=True)
class SettingsPair:
    """One arm's requested and effective settings."""

    place: str
    requested: Mapping[str, Any]
    effective: Mapping[str, Any]

    @property
    def unread(self) -> list[str]:
        """Settings that the engine does not report."""
        return sorted(key for key in self.requested if key not in self.effective)

    @property
    def findings(self) -> list[Finding]:
        """A finding for each setting that differs."""
        reported = ((key, value) for key, value in sorted(self.requested.items()) if key in self.effective)
        return [
            Finding(self.place, 0, f"{key}: requested {value!r}, effective {self.effective[key]!r}")
            for key, value in reported
            if self.effective[key] != value
        ]


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The settings of an arm's requests: those that differ, and those that no request reports."""

    asked: int = 0
    findings: tuple[Finding, ...] = ()
    unread: tuple[str, ...] = ()


def _of_requests(arm: ArmRecord | None) -> RequestSettings:
    """Each request's settings. One request may report none, as no stop string ended it; all of them may not."""
    accounts = (
        []
        if arm is None
        else [(request.request_id, account_of(request.trace.header.facts)) for request in arm.requests]
    )
    differing = (Finding(name, 0, line) for name, account in accounts for line in account.differences)
    every = {name for _, account in accounts for name in account.requested}
    known = {name for _, account in accounts for name in account.effective}
    return RequestSettings(len(every), tuple(differing), tuple(sorted(every - known)))


def _settings(place: str, effective: Effective) -> SettingsPair:
    return SettingsPair(place, effective.requested, effective.in_effect)


def _run(evidence: Evidence, _params: Params) -> CheckResult:
    ours = _settings(WHOLE_ARM, evidence.candidate.effective)
    # a misconfigured baseline makes every comparison with it worthless
    theirs = _settings(BASELINE, evidence.baseline.effective if evidence.baseline is not None else Effective())
    requests, plain = _of_requests(evidence.candidate), _of_requests(evidence.baseline)
    findings = [*ours.findings, *theirs.findings, *requests.findings, *plain.findings]
    unread = [*ours.unread, *(f"{BASELINE}'s {key}" for key in theirs.unread)]
    unread += [*requests.unread, *(f"{BASELINE}'s {key}" for key in plain.unread)]
    if findings:
        verdict, summary = Verdict.FAULT, _differences(findings)
    elif unread:
        verdict, summary = Verdict.INCONCLUSIVE, f"not read back from the engine: {', '.join(unread)}"
    else:
        own = f", and {requests.asked} of its requests" if requests.asked else ""
        verdict, summary = Verdict.CERTIFIED, f"all {len(ours.requested)} requested settings are in effect{own}"
    return CheckResult(
        verdict=verdict,
        summary=summary,
        n=len(ours.requested) + len(theirs.requested),
        statistic=float(len(findings)),
        findings=tuple(findings[:MAX_FINDINGS]),
        details={"requested": dict(ours.requested), "effective": dict(ours.effective)},
    )


def _differences(findings: Sequence[Finding]) -> str:
    """Every difference of an engine, and the first of its requests."""
    engines = [finding for finding in findings if finding.request in (WHOLE_ARM, BASELINE)]
    others = [finding for finding in findings if finding.request not in (WHOLE_ARM, BASELINE)]
    named = [engine.message if engine.request == WHOLE_ARM else f"{BASELINE}'s {engine.message}" for engine in engines]
    if others:
        named.append(f"settings of {len({other.request for other in others})} requests, first {others[0].message}")
    return "; ".join(named)


CHECK = Check(
    name="configuration",
    claim="configuration",
    run=_run,
    applies=lambda evidence: None if evidence.candidate.effective.requested else OURS,
    foresee=lambda _params, design: OURS if design.shown.decoder is LoopOwner.OWN else None,
    null="every requested setting is in effect",
    effect="settings that are not in effect",
    failures=True,
    external=True,
)
