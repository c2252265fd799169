"""Identity: one service, under the requested name, gave all answers of an arm.

Claim: identity. Null: every answer of the arm, and of its baseline, names the requested model, or the one that the
suite declares (`engine.answers_as`), and all of them name one configuration. Statistic: answers whose names differ from
those of the first one. Fault: an arm's answers name two models, fingerprints, providers or tiers, or the server's
version changed while the arm ran, because the verdicts then describe no service that exists; also a candidate and a
baseline that asked for the same model and were answered by two. Inconclusive: no answer names a model, and the server's
page does not name it around answers that all name their weights; all answers name one other model; or several
instances answered and no fingerprint shows that they are alike. Cannot see: a service that answers with another model
under the requested name (see token_law and two_sample), and instances that no header names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from audit.checks.base.interface import Check, gives
from audit.evidence.identity import CONFIGURED, AnsweredBy, VersionPair, answered_by, answered_by_service, versions
from audit.evidence.records import ArmRecord, Evidence
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, Params, Verdict
from engine.backends.evidence import Part
from engine.record.facts import SERVING

NO_SERVICE = "no service answered: the engine ran here, from the files of the run"


@dataclass(frozen=True, slots=True)
class ArmIdentity:
    """Who answered one arm. `role` is its place in a message, empty for the candidate."""

    role: str
    asked: str | None
    declared: str | None
    seen: tuple[AnsweredBy, ...]
    version: VersionPair

    @classmethod
    def of(cls, arm: ArmRecord, role: str) -> "ArmIdentity":
        """The identity of a stored arm."""
        asked, declared = arm.effective.requested.get("model"), arm.effective.facts.get("answers_as")
        return cls(role, _text(asked), _text(declared), answered_by(arm), versions(arm))

    @property
    def model(self) -> str | None:
        """The model of the first answer."""
        return self.seen[0].identity.model if self.seen else None

    @property
    def named_by_page(self) -> bool:
        """True if the server's page names the requested model behind the arm, and every answer its weights."""
        named = (self.version.after or "").endswith(f"{SERVING}{self.asked}")
        return named and all(item.identity.system_fingerprint is not None for item in self.seen)

    @property
    def others(self) -> int:
        """Answers whose configuration is not the first one's."""
        return sum(item.answers for item in self.seen if any(self._changed(name, item) for name in CONFIGURED))

    def _changed(self, name: str, item: AnsweredBy) -> bool:
        return bool(getattr(item.identity, name) != getattr(self.seen[0].identity, name))

    def changes(self) -> Iterator[Finding]:
        """Each name that changed within the arm, at the first answer that has another."""
        for name in CONFIGURED:
            other = next((item for item in self.seen if self._changed(name, item)), None)
            if other is not None:
                first, now = (getattr(item.identity, name) for item in (self.seen[0], other))
                yield Finding(other.first, 0, f"{self.role}{name} changed from {first!r} to {now!r}")
        if None not in (self.version.before, self.version.after) and self.version.before != self.version.after:
            last = self.seen[-1].first if self.seen else "the arm"
            yield Finding(last, 0, f"{self.role}version changed from {self.version.before!r} to {self.version.after!r}")

    def doubts(self) -> Iterator[str]:
        """Why an unchanged identity is not shown to be the requested one."""
        expected = self.declared or self.asked
        if self.model is None:
            if not self.named_by_page:
                yield f"{self.role}answers name no model"
        elif self.model != expected:
            mend = f"write engine.answers_as: {self.model!r} if a gateway maps the name"
            yield f"{self.role}answers are by {self.model!r}, {expected!r} was asked for; {mend}"
        instances = {item.identity.instance for item in self.seen}
        if len(instances) > 1 and any(item.identity.system_fingerprint is None for item in self.seen):
            yield f"{self.role}answers are by {len(instances)} instances, and no fingerprint shows that they are alike"


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _run(evidence: Evidence, _params: Params) -> CheckResult:
    arms = [ArmIdentity.of(evidence.candidate, "")]
    if evidence.baseline is not None:
        arms.append(ArmIdentity.of(evidence.baseline, "the baseline's "))
    answered = [arm for arm in arms if arm.seen]
    findings = [finding for arm in answered for finding in arm.changes()] + list(_between(answered))
    doubts = [doubt for arm in answered for doubt in arm.doubts()]
    verdict = Verdict.FAULT if findings else Verdict.INCONCLUSIVE if doubts or not answered else Verdict.CERTIFIED
    return CheckResult(
        verdict=verdict,
        summary=_summary(answered, findings, doubts),
        n=sum(item.answers for arm in answered for item in arm.seen),
        statistic=float(sum(arm.others for arm in answered)),
        findings=tuple(findings[:MAX_FINDINGS]),
        details={"identities": [item.to_json() for item in arms[0].seen], "version": arms[0].version.before},
    )


def _between(arms: Sequence[ArmIdentity]) -> Iterator[Finding]:
    """A finding if two arms that asked for the same model were answered by two."""
    if len(arms) == 2 and arms[0].asked == arms[1].asked and arms[0].model != arms[1].model:
        text = f"{arms[0].model!r} answered, and {arms[1].model!r} the baseline, which asked for the same model"
        yield Finding(arms[0].seen[0].first, 0, text)


def _summary(arms: Sequence[ArmIdentity], findings: Sequence[Finding], doubts: Sequence[str]) -> str:
    if findings:
        count = sum(arm.others for arm in arms)
        first = f"first in {findings[0].request}: {findings[0].message}"
        return f"{count} answers are of another service than the first; {first}"
    if doubts:
        return "; ".join(doubts)
    if not arms:
        return "no request was answered"
    return f"all {sum(item.answers for item in arms[0].seen)} answers are by {arms[0].seen[0].identity.words}"


CHECK = Check(
    name="identity",
    claim="identity",
    run=_run,
    applies=lambda evidence: None if answered_by_service(evidence.candidate.effective) else NO_SERVICE,
    foresee=gives(Part.IDENTITY, NO_SERVICE),
    null="one service, under the requested name, gave all answers",
    effect="answers of another service",
    external=True,
)
