"""A candidate against a rerun at the same seed: which requests differ, and why.

At temperature 0 and under shared randomness a difference is triaged as the equality checks do, by the lead at the first
differing token and the noise between baseline and control. Under rejection the token is a function of rows, drafts and
numbers: other numbers for the same purpose are real; other drafts are a kind of their own, because another draft uses
the same numbers differently; with equal numbers and drafts the rows must have changed, and the change counts as
numerical if it is within the largest change over requests that did not differ.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from audit.evidence.decisions import deciding_row
from audit.evidence.divergence import coupled as coupled_equality
from audit.evidence.divergence import greedy as greedy_equality
from audit.evidence.divergence.triage import MIN_NOISE_POSITIONS, Instrument
from audit.evidence.pairing import Divergence, Pair, compared, divergence, measure_noise, pair_arms
from audit.evidence.records import ArmKind, ArmRecord, Evidence, RequestRecord
from audit.evidence.verdicts import Finding
from engine.core.sequences import agreeing
from engine.core.types import Protocol, RecordLevel
from engine.record.columns import shape_fault
from engine.record.trace import steps_of

LARGEST_NOISE = 0.05
"""A change of p beyond this total variation is more than rounding."""
NOISE_PER_REQUEST = 128
"""Positions per request for measuring the noise of rows."""
KINDS = ("real", "untriaged", "drafts", "numerical")


@dataclass(frozen=True, slots=True)
class RequestDifference:
    """A request that differs; `kind` is `real`, `numerical`, `untriaged`, or `drafts` (other drafted tokens)."""

    divergence: Divergence
    kind: str
    reason: str

    def finding(self, arm: ArmKind) -> Finding:
        """The finding: place, compared arm and reason."""
        result = self.divergence
        ours, theirs = result.pair.candidate, result.pair.baseline
        if result.ended:
            place = f"ends after {len(ours.tokens)} tokens, there after {len(theirs.tokens)}"
        else:
            place = f"token {result.index} is {result.token}, there {theirs.tokens[result.index]}"
        return Finding(ours.request_id, result.step, f"{self.kind} against {arm}: {place}; {self.reason}")


@dataclass(frozen=True, slots=True)
class Rerun:
    """Comparison with a companion arm. `unpaired` lists its cases that the candidate lacks.

    `problem` says why the arms cannot be compared.
    """

    arm: ArmKind
    pairs: int
    tokens: int
    differences: tuple[RequestDifference, ...]
    unpaired: tuple[str, ...]
    problem: str | None

    def count(self, kind: str) -> int:
        """Number of differences of this kind."""
        return sum(difference.kind == kind for difference in self.differences)


@dataclass(frozen=True, slots=True)
class DecidingNumbers:
    """Random numbers behind one emitted token. `drafted` and `tested` map drafted tokens to their numbers."""

    drafted: Mapping[int, float]
    tested: Mapping[int, float]
    role: int
    number: float


def compare(evidence: Evidence, kind: ArmKind) -> Rerun:
    """Compare the candidate with one of its companions, which may hold fewer requests."""
    companion = evidence.companions[kind]
    pairs = pair_arms(evidence.candidate, companion).pairs
    unpaired = tuple(sorted(companion.by_key().keys() - evidence.candidate.by_key().keys()))
    problem = next((text for text in map(_incomparable, pairs) if text), None)
    if problem is not None:
        return Rerun(kind, len(pairs), 0, (), unpaired, problem)
    result = [pair for pair in map(divergence, pairs) if pair is not None]
    instrument = _instrument(evidence.candidate)
    differences = (
        _triage_rejection(result, pairs) if instrument is None else _triage_equal(result, evidence, instrument)
    )
    return Rerun(kind, len(pairs), sum(compared(pair) for pair in pairs), differences, unpaired, None)


def _incomparable(pair: Pair) -> str | None:
    ours, theirs = pair.candidate.trace.header, pair.baseline.trace.header
    if ours.prompt != theirs.prompt:
        return f"request {pair.candidate.request_id} has another prompt there"
    if (ours.sampling, ours.stream, ours.protocol) != (theirs.sampling, theirs.stream, theirs.protocol):
        return f"request {pair.candidate.request_id} has another seed, stream, protocol or other sampling there"
    return None


def _instrument(arm: ArmRecord) -> Instrument | None:
    """The instrument for leads if tokens depend only on the target and the seed."""
    headers = [request.trace.header for request in arm.requests]
    if all(header.sampling.greedy for header in headers):
        return greedy_equality.INSTRUMENT
    if all(header.protocol is Protocol.GUMBEL for header in headers):
        return coupled_equality.INSTRUMENT
    return None


def _triage_equal(
    divergences: Sequence[Divergence], evidence: Evidence, instrument: Instrument
) -> tuple[RequestDifference, ...]:
    if not divergences:
        return ()
    reference = evidence.baseline
    noise = measure_noise(reference, evidence.controls, instrument.margins) if reference is not None else None
    result = []
    for item in divergences:
        lead = None if item.ended else instrument.lead_over(item)
        if item.ended:
            result.append(RequestDifference(item, "real", "the tokens agree as far as both go"))
        elif lead is None or noise is None or noise.positions < MIN_NOISE_POSITIONS:
            result.append(
                RequestDifference(item, "untriaged", "the lead or the noise between two plain runs is not known")
            )
        else:
            # a negative lead: the chosen token is not the best one under its own key
            kind = "numerical" if abs(lead) <= noise.bound else "real"
            result.append(
                RequestDifference(item, kind, f"its lead {lead:.4g} {instrument.unit}, noise bound {noise.bound:.4g}")
            )
    return tuple(result)


def _triage_rejection(divergences: Sequence[Divergence], pairs: Sequence[Pair]) -> tuple[RequestDifference, ...]:
    same = [pair for pair in pairs if divergence(pair) is None]

    @cache
    def noise() -> tuple[int, float]:
        changes = [change for pair in same for change in _row_changes(pair)]
        return len(changes), max(changes, default=0.0)

    result = []
    for item in divergences:
        cause = _cause(item)
        if cause is not None:
            result.append(cause)
            continue
        change = _row_change(item.pair, item.index)
        positions, bound = noise() if change is not None else (0, 0.0)
        if change == 0.0:
            result.append(RequestDifference(item, "real", "rows, drafts and numbers are the same"))
        elif change is None or positions < MIN_NOISE_POSITIONS or bound > LARGEST_NOISE:
            result.append(RequestDifference(item, "untriaged", "the change of the rows or the usual one is not known"))
        else:
            kind = "numerical" if change <= bound else "real"
            result.append(
                RequestDifference(
                    item, kind, f"p changed by {change:.3g} in total variation, usual at most {bound:.3g}"
                )
            )
    return tuple(result)


def _cause(result: Divergence) -> RequestDifference | None:
    """The difference as classified without rows; None if numbers and drafts are the same."""
    if result.ended:
        return RequestDifference(result, "real", "the tokens agree as far as both go")
    sides = [result.pair.candidate, result.pair.baseline]
    if any(side.trace.header.level is RecordLevel.TOKENS or shape_fault(side.trace) for side in sides):
        return RequestDifference(result, "untriaged", "the record holds no numbers")
    ours, theirs = (offer(side, result.index) for side in sides)
    if ours.role == theirs.role and _other(ours.number, theirs.number):
        return RequestDifference(result, "real", f"drawn with {ours.number:.6g}, there with {theirs.number:.6g}")
    for token in ours.tested.keys() & theirs.tested.keys():
        if _other(ours.tested[token], theirs.tested[token]):
            numbers = f"{ours.tested[token]:.6g}, there with {theirs.tested[token]:.6g}"
            return RequestDifference(result, "real", f"draft {token} was tested with {numbers}")
    if ours.drafted.keys() != theirs.drafted.keys():
        draws = list(zip(ours.drafted.values(), theirs.drafted.values(), strict=False))
        if any(_other(*pair) for pair in draws):
            return RequestDifference(result, "real", f"drafted with {draws[0][0]:.6g}, there with {draws[0][1]:.6g}")
        return RequestDifference(result, "drafts", f"drafted {sorted(ours.drafted)}, there {sorted(theirs.drafted)}")
    return None


def offer(request: RequestRecord, index: int) -> DecidingNumbers:
    """Tokens drafted and tested for emitted token `index`; the trace is well-formed and above level tokens."""
    trace = request.trace
    view = next(step for step in steps_of(trace) if step.emitted.start <= index < step.emitted.stop)
    parent = int(trace.row[index]) - 1
    children = [i for i, node in enumerate(trace.node_parent[view.nodes]) if int(node) == parent]
    tokens, numbers = trace.node_token[view.nodes], trace.node_uniform[view.nodes]
    examined = zip(trace.examined_node[view.examined], trace.examined_uniform[view.examined], strict=True)
    tested = {int(tokens[node]): float(number) for node, number in examined if int(node) in children}
    drafted = {int(tokens[child]): float(numbers[child]) for child in children}
    return DecidingNumbers(drafted, tested, int(trace.role[index]), float(trace.uniform[index]))


def _other(left: float, right: float) -> bool:
    return math.isfinite(left) and math.isfinite(right) and left != right


def _row_change(pair: Pair, index: int) -> float | None:
    """Total variation between the rows of p that decided the token; None without rows."""
    sides = (pair.candidate.trace, pair.baseline.trace)
    if any(trace.header.level is not RecordLevel.FULL or shape_fault(trace) for trace in sides):
        return None
    ours, theirs = (deciding_row(trace, index).p for trace in sides)
    return 0.5 * float(np.abs(ours - theirs).sum())


def _row_changes(pair: Pair) -> list[float]:
    shared = agreeing(pair.candidate.tokens, pair.baseline.tokens)
    result = [_row_change(pair, index) for index in range(min(shared, NOISE_PER_REQUEST))]
    return [change for change in result if change is not None]
