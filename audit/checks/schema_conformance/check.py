"""Schema conformance: finished answers follow their grammar.

Claim: schema. Null: the text of every finished answer follows the request's grammar. Each answer is judged from its
text alone, never trusting the mask: strict JSON and jsonschema, Python's `re`, comparison with the choices, a reader
of structural tags, or the other grammar library. Statistic: invalid answers; one is a fault, because a caller parses
the text. Every invalid answer is laid at one door: decoding, if the grammar library refuses a token of it when it
reads the answer again; the grammar library, if it accepts the whole answer, whether or not anything was drafted. The
baseline's answers are judged too, for comparison. Effect: their share; bound: its 99 % Clopper-Pearson upper bound.
Answers that a length limit or a stop string cut are counted apart. Cannot see: valid answers with wrong content, and a
schema's formats, which jsonschema treats as remarks.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from audit.checks.base.interface import NO_GRAMMAR, Check
from audit.checks.base.wrong_units import counted
from audit.checks.schema_conformance.judges import Judge, Opinion, judge_of
from audit.evidence.coverage.groups import Group
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, Params, Verdict
from audit.stats.binomial import upper_bound
from engine.core.structured import ConstraintSpec
from engine.core.types import FinishReason
from engine.record.facts import CONSTRAINT

INSTEAD: Final = "the server answers with {} instead of a text"
DECODING: Final = "decoding"
LIBRARY: Final = "library"
UNKNOWN: Final = "unknown"
DOORS: Final = {
    DECODING: "the grammar library refuses it too, so decoding left the grammar",
    LIBRARY: "the grammar library accepts it, so the library is wrong and not speculation",
    UNKNOWN: "the backend does not say whether the grammar library accepts it",
}


def finished_text(request: RequestRecord) -> str | None:
    """The text of an answer that an end token ended, without that token; None for one that was cut."""
    if request.finish_reason is FinishReason.EOS:
        return str(_facts(request).get("content", request.text))
    stops = request.trace.header.sampling.stop_token_ids
    if request.finish_reason is FinishReason.STOP and request.tokens and request.tokens[-1] in stops:
        account = _facts(request)
        return str(account["text"]) if "text" in account else request.text
    return None


def _facts(request: RequestRecord) -> dict[str, Any]:
    return dict(request.trace.header.facts.get(CONSTRAINT, {}))


def _door(request: RequestRecord) -> str:
    account = _facts(request)
    if "refused" not in account:
        return UNKNOWN
    return LIBRARY if account["refused"] is None else DECODING


@dataclass(slots=True)
class _Judges:
    known: dict[ConstraintSpec, Judge] = field(default_factory=dict)

    def of(self, spec: ConstraintSpec) -> Judge:
        if spec not in self.known:
            self.known[spec] = judge_of(spec)
        return self.known[spec]


@dataclass(frozen=True, slots=True)
class _Judged:
    """The judged answers of an arm: by request the problem and its door, and what was not judged."""

    valid: int
    cut: int
    repeated_keys: int
    problems: dict[str, str]
    doors: dict[str, str]
    silent: Counter[str]

    @property
    def n(self) -> int:
        """Judged answers."""
        return self.valid + len(self.problems)


def _judge(requests: Iterable[RequestRecord], judges: _Judges) -> _Judged:
    valid = cut = repeated = 0
    problems, doors, silent = {}, {}, Counter[str]()
    for request in requests:
        spec = request.trace.header.sampling.structured
        if spec is None:
            continue
        text = finished_text(request)
        if text is None:
            cut += 1
            continue
        instead = _facts(request).get("instead")
        opinion = judges.of(spec)(text) if instead is None else Opinion(silent=INSTEAD.format(instead))
        repeated += opinion.repeated_keys
        if opinion.silent is not None:
            silent[opinion.silent] += 1
        elif opinion.problem is None:
            valid += 1
        else:
            problems[request.request_id], doors[request.request_id] = opinion.problem, _door(request)
    return _Judged(valid, cut, repeated, problems, doors, silent)


def _run(evidence: Evidence, _params: Params) -> CheckResult:
    judges = _Judges()
    ours = _judge(evidence.candidate.requests, judges)
    theirs = _judge(evidence.baseline.requests if evidence.baseline is not None else (), judges)
    doors = Counter(ours.doors.values())
    findings = [Finding(name, 0, f"{problem}; {DOORS[ours.doors[name]]}") for name, problem in ours.problems.items()]
    if findings:
        verdict, summary = Verdict.FAULT, _blame(ours, theirs, doors)
    elif ours.silent or not ours.n:
        verdict, summary = Verdict.INCONCLUSIVE, _open(ours)
    else:
        beside = f"; {ours.cut} were cut before their end" if ours.cut else ""
        summary = f"all {ours.n} finished answers are valid, at most {upper_bound(0, ours.n):.2g} are not{beside}"
        verdict = Verdict.CERTIFIED
    details = {
        "invalid_by": {door: doors[door] for door in DOORS},
        "baseline": {"judged": theirs.n, "invalid": len(theirs.problems), "cut": theirs.cut},
        "cut": ours.cut,
        "not_judged": sum(ours.silent.values()),
        "repeated_keys": ours.repeated_keys,
    }
    return counted(verdict, summary, ours.n, len(findings), findings, details)


def _blame(ours: _Judged, theirs: _Judged, doors: Counter[str]) -> str:
    count = f"{len(ours.problems)} of {ours.n} answers are invalid"
    beside = f"{len(theirs.problems)} of {theirs.n} of the baseline's are" if theirs.n else "there is no baseline"
    if doors[DECODING]:
        return f"{count}, in {doors[DECODING]} of them decoding left the grammar; {beside}"
    if doors[LIBRARY]:
        return f"{count}, and the grammar library accepts them: it is wrong, not speculation; {beside}"
    return f"{count}; {beside}"


def _open(ours: _Judged) -> str:
    if ours.silent:
        reason, count = ours.silent.most_common(1)[0]
        return f"{count} answers cannot be judged ({reason}); {ours.n} others are valid"
    return f"no answer is finished, {ours.cut} were cut; raise max_new_tokens"


CHECK = Check(
    name="schema_conformance",
    claim="schema",
    run=_run,
    applies=lambda evidence: None if evidence.constrained else NO_GRAMMAR,
    foresee=lambda _params, design: None if design.structured else NO_GRAMMAR,
    null="the text of every finished answer follows its grammar",
    effect="share of invalid answers",
    covers=frozenset({Group.EVENTS}),
)
