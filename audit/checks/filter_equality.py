"""Filter equality: the safety filters decide what they decide without speculation.

Claim: filters. Null: every request has the decisions of its baseline (component, category, token, characters, action),
and the decisions and chunks of a fresh filter that reads the committed text. Two comparisons: with the baseline where
the rule promises its tokens (temperature 0, gumbel), up to the first token that differs, and of refused prompts always;
with a fresh filter in every arm: made from the rules in the effective configuration, or, where the rules are a model,
the engine's own second reading. Statistic: requests that differ; any is a fault, and so is a filter of another version
or with other rules. Effect: their share; bound: its 99 % Clopper-Pearson upper bound. Cannot see: a filter that judges
wrongly in both arms, texts that it should know and does not, and decisions about prompts beyond those of the baseline.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from audit.checks.base.interface import Check
from audit.checks.base.plans import at_least
from audit.checks.base.wrong_units import counted
from audit.evidence.coverage.groups import Group
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.streams import RecordedStream, declared_filters, fresh_filters, other_chunk, stream_again, stream_of
from audit.evidence.verdicts import WHOLE_ARM, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from engine.core.sequences import agreeing
from engine.stream.fresh_reading import FreshReading
from engine.stream.text_stream import Decided

NO_FILTERS = "the arm has no filters"
FRESH: Final = "a fresh filter"
IDENTITY: Final = ("component", "version", "ruleset", "action", "side")


def _applies(evidence: Evidence) -> str | None:
    arm = evidence.candidate
    if not declared_filters(arm.effective):
        return NO_FILTERS
    return None if len(arm.requests) or len(arm.refused) else NoEvidence("the arm has no requests")


def _identity(mapping: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(mapping.get(key) for key in IDENTITY)


def _other_filters(evidence: Evidence, request: RequestRecord, stream: RecordedStream) -> str | None:
    wanted, result = (
        [_identity(mapping) for mapping in declared_filters(evidence.candidate.effective)],
        list(map(_identity, stream.filters)),
    )
    return None if wanted == result else f"{request.key} was judged by {result}, the arm has {wanted}"


def _baseline_differs(evidence: Evidence) -> str | None:
    if evidence.baseline is None:
        return None
    ours, theirs = (
        list(map(_identity, declared_filters(arm.effective))) for arm in (evidence.candidate, evidence.baseline)
    )
    return None if ours == theirs else f"the arm's filters are {ours}, its baseline's {theirs}"


def _said(decisions: Iterable[Decided]) -> list[tuple[Any, ...]]:
    return sorted(astuple(decision) for decision in decisions)


def _difference(ours: Iterable[Decided], theirs: Iterable[Decided], other: str) -> str | None:
    """The first decision that only one side made, in words."""
    left, right = _said(ours), _said(theirs)
    if left == right:
        return None
    lone = min((set(left) ^ set(right)) or set(left))
    who, lacking = ("the arm", other) if lone in left else (other, "the arm")
    index, category, token, start, end, action = lone
    place = (
        f"characters {start} to {end} at token {token}" if token >= 0 else f"characters {start} to {end} of the prompt"
    )
    return f"{who} has {action} for {category} (filter {index}), {place}; {lacking} has not"


def _against_baseline(request: RequestRecord, stream: RecordedStream, base: RequestRecord) -> str | None:
    theirs = stream_of(base.trace.header)
    if theirs is None:
        return "the baseline records no stream"
    shared = agreeing(request.tokens, base.tokens)
    parted = shared < min(len(request.tokens), len(base.tokens))
    ours = [decision for decision in stream.decisions if not parted or decision.token < shared]
    return _difference(
        ours, [decision for decision in theirs.decisions if not parted or decision.token < shared], "the baseline"
    )


def _against_fresh(stream: RecordedStream, again: FreshReading) -> str | None:
    """The first difference from the stream that fresh filters make of the same text."""
    written = tuple(decision for decision in stream.decisions if decision.token >= 0)
    return (
        _difference(written, again.decisions, FRESH)
        or ("its decisions are recorded in another order" if written != again.decisions else None)
        or other_chunk(stream.chunks, again.chunks)
        or (f"filters held {stream.held} characters, fresh ones {again.held}" if stream.held != again.held else None)
    )


@dataclass(slots=True)
class _Tally:
    """Counts over the requests so far."""

    findings: list[Finding]
    n: int = 0
    broken: int = 0
    decisions: int = 0
    paired: int = 0
    again: int = 0
    silent: int = 0
    reason: str = ""
    """Why requests were not judged again; empty if all were."""

    def add(self, request: RequestRecord, messages: Sequence[str]) -> None:
        """Count one request that was compared."""
        self.n += 1
        self.broken += bool(messages)
        self.findings += [Finding(request.request_id, 0, message) for message in messages]


def _compare(evidence: Evidence) -> _Tally:
    message = _baseline_differs(evidence)
    tally = _Tally([] if message is None else [Finding(WHOLE_ARM, 0, message)])
    base = {} if evidence.baseline is None else evidence.baseline.by_key()
    base |= {} if evidence.baseline is None else {item.key: item for item in evidence.baseline.refused}
    arm, fresh = evidence.candidate, fresh_filters(evidence.candidate)
    for request in (*arm.requests, *arm.refused):
        stream = stream_of(request.trace.header)
        if stream is None:
            tally.silent += 1
            continue
        tally.decisions += len(stream.decisions)
        result, other = [_other_filters(evidence, request, stream)], base.get(request.key)
        compared = False
        if other is not None and (request.trace.header.repeats or not (request.tokens and other.tokens)):
            result.append(_against_baseline(request, stream, other))
            tally.paired += 1
            compared = True
        again = stream_again(request, stream, fresh) if request.tokens else None
        if again is not None:
            result.append(_against_fresh(stream, again))
            tally.again += 1
            compared = True
        elif request.tokens:
            tally.reason = fresh.reason or "the tokens were not decoded one by one"
        messages = [item for item in result if item is not None]
        if compared or messages:
            tally.add(request, messages)
        else:
            tally.silent += 1
    return tally


def _run(evidence: Evidence, params: Params) -> CheckResult:
    tally = _compare(evidence)
    enough = tally.n and not tally.silent and tally.decisions >= int(params["min_decisions"])
    verdict = Verdict.FAULT if tally.findings else Verdict.CERTIFIED if enough else Verdict.INCONCLUSIVE
    details = {
        "decisions": tally.decisions,
        "with_baseline": tally.paired,
        "judged_again": tally.again,
        "not_compared": tally.silent,
        "not_judged_again": tally.reason,
    }
    summary = _summary(tally, int(params["min_decisions"]))
    return counted(verdict, summary, tally.n, tally.broken, tally.findings, details)


def _summary(tally: _Tally, least: int) -> str:
    if tally.findings:
        return f"{tally.broken} of {tally.n} requests have other decisions; first: {tally.findings[0].message}"
    if tally.silent:
        return f"{tally.silent} of {tally.n + tally.silent} requests cannot be compared; the others agree"
    counts = f"{tally.decisions} decisions in {tally.n} requests"
    if tally.decisions < least:
        return f"{counts}, {least} are needed; use rules that the answers meet. So far all agree"
    how = f"{tally.paired} with the baseline, {tally.again} by fresh filters"
    return f"{counts} agree ({how}), at most {upper_bound(0, tally.n):.2g} of the requests do not"


CHECK = Check(
    name="filter_equality",
    claim="filters",
    defaults={"min_decisions": 10},
    run=_run,
    applies=_applies,
    foresee=lambda _params, design: None if design.stream is not None and design.stream.filters else NO_FILTERS,
    null="filters decide the same as without speculation, and as fresh filters over the committed text",
    effect="share of requests whose decisions differ",
    plan=at_least("min_decisions", "decisions of filters"),
    covers=frozenset({Group.EVENTS}),
)
