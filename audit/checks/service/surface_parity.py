"""Surface parity: answers under speculation have every field that plain answers have, and contradict none of them.

Claim: surface. Null: a field that every plain answer fills is filled in every answer of the arm, whole and streamed,
and each answer agrees with itself: log-probabilities are at most 0, a token stands in its own list with its own value
or is less likely than all of it, and at temperature 0 without penalties it is the first of the list or tied. Statistic:
answers that lack such a field or contradict themselves. One is a fault, because speculation took a feature of the
service away; it is inconclusive where plain answers contradict themselves too, or lose the same fields in their
streams. Fields that depend on what an answer says (content, reasoning, refusals, tool calls; lists of the requested
length, where tokens of one text share an entry) are compared by how often they are filled: a fault if the plain answers
fill one more often than chance allows (Fisher's exact test, one-sided, at `alpha` divided by these fields). Cannot see:
a field that both lack, and values that are wrong and consistent (see logprob_closeness, token_law and
greedy_equality).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from audit.checks.base.interface import Check, gives
from audit.evidence.records import ArmRecord, Evidence
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, NoEvidence, Params, Verdict
from engine.backends.evidence import Part
from engine.backends.openai.surface import BY_CHANCE, KEY

NO_SURFACE = "no service answered: the engine ran here, and its record has one form"
NO_BASELINE = NoEvidence("there is no baseline whose answers could have more fields")


def _applies(evidence: Evidence) -> str | None:
    if not any(KEY in request.trace.header.facts for request in evidence.candidate.requests):
        return NO_SURFACE
    return None if evidence.baseline is not None else NO_BASELINE


@dataclass(frozen=True, slots=True)
class ArmSurface:
    """The surfaces of an arm's answers by request."""

    by_request: Mapping[str, Mapping[str, Any]]
    filled: Mapping[str, int] = field(default_factory=dict)
    """Answers that fill a field."""
    streams_lack: Mapping[str, str] = field(default_factory=dict)
    """Field that the whole answer fills and the streamed one does not, and the first such request."""

    @classmethod
    def of(cls, arm: ArmRecord) -> "ArmSurface":
        """The surfaces of a stored arm."""
        facts = {request.request_id: request.trace.header.facts.get(KEY, {}) for request in arm.requests}
        filled = Counter(str(name) for told in facts.values() for name in told.get("fields", ()))
        lost: dict[str, str] = {}
        for request, told in facts.items():
            for name in told.get("streamed_lacks", ()):
                lost.setdefault(str(name), request)
        return cls(facts, filled, lost)

    @property
    def answers(self) -> int:
        """Number of answers."""
        return len(self.by_request)

    def always(self) -> list[str]:
        """Fields that every answer fills, by name."""
        return sorted(name for name, count in self.filled.items() if count == self.answers)

    def lacking(self, name: str) -> list[str]:
        """Requests whose answers do not fill a field."""
        return [request for request, told in self.by_request.items() if name not in told.get("fields", ())]

    def flaws(self, tie: float) -> Iterator[Finding]:
        """The contradictions of each answer with itself."""
        for request, told in self.by_request.items():
            yield from (Finding(request, int(flaw["place"]), str(flaw["text"])) for flaw in told.get("flaws", ()))
            if float(told.get("behind", 0.0)) > tie:
                text = f"at temperature 0 its own list has a token that is likelier by {told['behind']:.3g} nats"
                yield Finding(request, int(told["behind_at"]), text)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    assert evidence.baseline is not None
    ours, plain = ArmSurface.of(evidence.candidate), ArmSurface.of(evidence.baseline)
    tie = float(params["tie"])
    own, shared = list(ours.flaws(tie)), next(plain.flaws(tie), None) is not None
    lost = [*_lost(ours, plain), *_streamed(ours, plain), *fewer_than_plain(ours, plain, float(params["alpha"]))]
    findings = [*lost, *own]
    broken = bool(lost) or (bool(own) and not shared)
    both = sorted(set(ours.streams_lack) & set(plain.streams_lack))
    return CheckResult(
        verdict=Verdict.FAULT if broken else Verdict.INCONCLUSIVE if own or not plain.answers else Verdict.CERTIFIED,
        summary=_summary(ours, plain, findings, shared=shared and not lost),
        n=ours.answers,
        statistic=float(len({finding.request for finding in findings})),
        findings=tuple(findings[:MAX_FINDINGS]),
        details={
            "answers": {"candidate": ours.answers, "baseline": plain.answers},
            "fields": {
                name: {"candidate": ours.filled.get(name, 0), "baseline": plain.filled.get(name, 0)}
                for name in sorted({*ours.filled, *plain.filled})
            },
            "streams_of_both_lack": both,
        },
    )


def _lost(ours: ArmSurface, plain: ArmSurface) -> Iterator[Finding]:
    """Each field that all plain answers fill, at the first answer without it."""
    for name in plain.always() if plain.answers else ():
        without = ours.lacking(name)
        if without and name not in BY_CHANCE:
            text = f"{name}: filled in all {plain.answers} plain answers, missing in {len(without)} of {ours.answers}"
            yield Finding(without[0], 0, text)


def _streamed(ours: ArmSurface, plain: ArmSurface) -> Iterator[Finding]:
    """Each field that a streamed answer loses under speculation only."""
    for name, request in ours.streams_lack.items():
        if name not in plain.streams_lack:
            yield Finding(
                request, 0, f"{name}: in the whole answer, missing in the streamed one; plain streams have it"
            )


def fewer_than_plain(ours: ArmSurface, plain: ArmSurface, alpha: float) -> Iterator[Finding]:
    """Each field of `BY_CHANCE` that plain answers fill more often than chance allows."""
    from scipy.stats import hypergeom

    for name in BY_CHANCE:
        kept, had = ours.filled.get(name, 0), plain.filled.get(name, 0)
        # given the sum of both, the smaller the candidate's count, the stronger the evidence
        p_value = hypergeom.cdf(kept, ours.answers + plain.answers, kept + had, ours.answers)
        if p_value < alpha / len(BY_CHANCE):
            text = f"{name}: filled in {had} of {plain.answers} plain answers, in {kept} of {ours.answers} here"
            yield Finding(next(iter(ours.lacking(name))), 0, text)


def _summary(ours: ArmSurface, plain: ArmSurface, findings: list[Finding], *, shared: bool) -> str:
    if findings:
        first = findings[0]
        text = f"{len({finding.request for finding in findings})} answers differ in form, first {first.request}"
        text = f"{text}: {first.message}"
        return f"{text}; plain answers contradict themselves too" if shared else text
    if not plain.answers:
        return "no plain answer to compare with"
    return f"{len(plain.always())} fields that every plain answer fills are in all {ours.answers} answers"


CHECK = Check(
    name="surface_parity",
    claim="surface",
    defaults={"alpha": 0.0001, "tie": 0.01},
    run=_run,
    applies=_applies,
    foresee=gives(Part.IDENTITY, NO_SURFACE),
    null="every field of plain answers is there under speculation, and no answer contradicts itself",
    effect="answers that differ in form",
    external=True,
)
