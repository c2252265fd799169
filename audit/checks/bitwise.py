"""Bitwise equality: the candidate's deciding rows of logits are those of the target alone, to the last bit.

Claim: bitwise. Null: at every emitted position the target gave the candidate the logits that it gives the same text
without speculation, regardless of drafts, neighbours and earlier requests. Statistic: the number of positions whose
digests differ; any is a fault, because the numerics mode promises equal bits. Every position of every request is
compared with a reread: the target alone reads the emitted text again, by the same code and numerics. Positions with the
baseline's prefix, up to and including the first differing token of a pair, are compared with the baseline too. Effect:
differing positions per 1000; bound: its 99 % Clopper-Pearson upper bound. Assumes that digests are of the rows that
decided (replay compares the two at record level `full`). Cannot see: a fault of the model's own code that reading and
decoding share, or anything that happens to a row after the model gave it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.checks.base.interface import Check, Design, never_excused, not_run
from audit.checks.base.plans import at_least
from audit.evidence.coverage.examined import read_again
from audit.evidence.coverage.groups import Group
from audit.evidence.pairing import Pair, Pairing, compared, pair_arms
from audit.evidence.promises import keeps
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.tally import TOLERANCE
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from engine.backends.evidence import Part
from engine.core.types import RecordLevel
from engine.record.effective import EffectiveNumerics
from engine.record.trace import Trace
from engine.sampling.transforms import softmax

NOT_REPORTED: Final = "the backend does not report numerics, so no bits are promised"
NO_REREAD: Final = NoEvidence("there is no reread arm: the backend cannot read the emitted text again as it decodes")


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One request against another record of the same text: compared positions, and which [D] of them differ."""

    key: str
    positions: int
    differing: tuple[int, ...]
    findings: tuple[Finding, ...]
    """Of the first MAX_FINDINGS differing positions, in the same order."""


@dataclass(frozen=True, slots=True)
class _Compared:
    again: tuple[_Comparison, ...]
    """Requests with what was read again."""
    unread: tuple[str, ...]
    """Requests that were not read again."""
    baseline: tuple[_Comparison, ...]
    """Pairs with the baseline, up to the first differing token."""
    unpaired: tuple[str, ...]

    @property
    def positions(self) -> int:
        """Number of positions read again."""
        return sum(item.positions for item in self.again)

    @property
    def baseline_positions(self) -> int:
        """Number of positions compared with the baseline."""
        return sum(item.positions for item in self.baseline)

    @property
    def examined(self) -> int:
        """Number of positions compared with anything."""
        counts = {item.key: item.positions for item in self.again}
        for one in self.baseline:
            counts[one.key] = max(counts.get(one.key, 0), one.positions)
        return sum(counts.values())

    @property
    def differing(self) -> int:
        """Number of positions that differ from anything."""
        return len({(item.key, index) for item in (*self.again, *self.baseline) for index in item.differing})

    def findings(self) -> Iterator[Finding]:
        """One finding per differing position: against what was read again, else against the baseline."""
        known = {(item.key, index) for item in self.again for index in item.differing}
        for one in self.again:
            yield from one.findings
        for one in self.baseline:
            for index, finding in zip(one.differing, one.findings, strict=False):
                if (one.key, index) not in known:
                    yield finding


def _foresee(params: Params, design: Design) -> str | None:
    shown = design.shown
    if shown.promises is None and not params["force"]:
        return NOT_REPORTED
    if not shown.gives(Part.REREAD):
        return NO_REREAD
    if params["force"] or keeps(shown.promises, shown.shape):
        return None
    return f"the numerics promise {shown.promises}, which is too little for a {shown.shape} proposer"


def _run(evidence: Evidence, params: Params) -> CheckResult:
    reread = evidence.companions.get(ArmKind.REREAD)
    forced = bool(params["force"])
    others = {"baseline": evidence.baseline, "reread": reread}
    reason = _no_promise(evidence.candidate, {name: arm for name, arm in others.items() if arm is not None}, forced)
    if reason is None and reread is None:
        reason = NO_REREAD
    if reason is not None or reread is None:
        return not_run(reason or NO_REREAD)
    arms = _compare_arms(evidence.candidate, reread, evidence.baseline)
    if isinstance(arms, str):
        return CheckResult(Verdict.INCONCLUSIVE, arms)
    examined, differing = arms.examined, arms.differing
    return CheckResult(
        verdict=_verdict(arms, params),
        summary=_summary(arms, params),
        n=examined,
        statistic=float(differing),
        effect=1000.0 * differing / examined if examined else None,
        bound=1000.0 * upper_bound(differing, examined, float(params["confidence"])) if examined else None,
        findings=tuple(finding for finding, _ in zip(arms.findings(), range(MAX_FINDINGS), strict=False)),
        details={
            "positions": examined,
            "differing": differing,
            "read_again": {"positions": arms.positions, "requests": len(arms.again), "unread": list(arms.unread)},
            "pairs": len(arms.baseline),
            "pairs_differing": sum(bool(item.differing) for item in arms.baseline),
            "baseline_positions": arms.baseline_positions,
            "unpaired": list(arms.unpaired),
            "mode": _numerics(evidence.candidate).mode,
            "promises": _numerics(evidence.candidate).promises,
            "forced": forced,
        },
    )


def _numerics(arm: ArmRecord) -> EffectiveNumerics:
    return arm.effective.numerics or EffectiveNumerics(None, None, None, {})


def _no_promise(candidate: ArmRecord, others: Mapping[str, ArmRecord], forced: bool) -> str | None:
    """Why the bits of the arms need not be equal, or None."""
    ours = _numerics(candidate)
    for name, arm in others.items():
        if _numerics(arm).mode != ours.mode:
            return f"the candidate ran with numerics {ours.mode}, its {name} with {_numerics(arm).mode}"
    if forced:
        return None
    reported = [ours, *map(_numerics, others.values())]
    if not all(numerics.facts for numerics in reported):
        return NOT_REPORTED
    shape = candidate.effective.proposer_shape or "chain"
    needed = "tree" if shape == "tree" else "chain"
    for numerics in reported:
        if not keeps(numerics.promises, shape):
            why = f": {numerics.reason}" if numerics.reason else ""
            return f"numerics {numerics.mode} promises {numerics.promises}, a {shape} proposer needs {needed}{why}"
    return None


def _compare_arms(candidate: ArmRecord, reread: ArmRecord, baseline: ArmRecord | None) -> _Compared | str:
    """All comparisons; a text says why there are none."""
    again: list[_Comparison] = []
    unread: list[str] = []
    # both have one order, and the reread lacks requests at most
    rest = iter(reread.requests)
    following = next(rest, None)
    for request in candidate.requests:
        if following is None or following.key != request.key:
            unread.append(request.key)
            continue
        pair, following = Pair(request, following), next(rest, None)
        problem = _incomparable(pair, "the text read again")
        if problem is None and pair.candidate.tokens != pair.baseline.tokens:
            problem = f"request {request.request_id}: other tokens were read again than it emitted"
        if problem is not None:
            return problem
        again.append(_compare(pair, len(request.tokens), "read again it is"))
    pairing = Pairing((), ()) if baseline is None else pair_arms(candidate, baseline)
    for pair in pairing.pairs:
        problem = _incomparable(pair, "its baseline")
        if problem is not None:
            return problem
    pairs = tuple(_compare(pair, compared(pair), "the baseline's") for pair in pairing.pairs)
    return _Compared(tuple(again), tuple(unread), pairs, pairing.unpaired)


def _incomparable(pair: Pair, other: str) -> str | None:
    """Why a pair's rows cannot be compared, or None."""
    ours, theirs = pair.candidate, pair.baseline
    if ours.trace.header.prompt != theirs.trace.header.prompt:
        return f"request {ours.request_id} and {other} have different prompts"
    for item in (ours, theirs):
        if len(item.trace.logits_digest) < len(item.tokens):
            return f"request {item.request_id} has no digests of its rows; record it at scalars or above"
    return None


def _compare(pair: Pair, count: int, other: str) -> _Comparison:
    ours, theirs = pair.candidate.trace.logits_digest[:count], pair.baseline.trace.logits_digest[:count]
    unlike = ours != theirs
    emitted = (np.asarray(item.tokens[:count]) for item in (pair.candidate, pair.baseline))
    alike = np.equal(*emitted)
    # reading again follows no penalties, biases or masks, which change the lead but not the row
    plain = pair.candidate.trace.header.sampling.plain_scores
    for name in ("logprob", "margin") if plain else ("logprob",):
        one, two = (getattr(item.trace, name)[:count] for item in (pair.candidate, pair.baseline))
        if len(one) == len(two) == count:
            unlike |= alike & ~np.isclose(one, two, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    differing = tuple(int(index) for index in np.flatnonzero(unlike))
    findings = tuple(_finding(pair, index, other) for index in differing[:MAX_FINDINGS])
    return _Comparison(pair.candidate.key, count, differing, findings)


def _finding(pair: Pair, index: int, other: str) -> Finding:
    trace = pair.candidate.trace
    step = int(np.searchsorted(np.cumsum(trace.n_emitted, dtype=np.int64), index, side="right"))
    position = len(trace.header.prompt) + index
    ours, theirs = (f"{int(item.trace.logits_digest[index]):016x}" for item in (pair.candidate, pair.baseline))
    what = "the row's digest is"
    if ours == theirs:
        what = "of an equal row the log-probability and the lead are"
        ours, theirs = (
            f"{item.trace.logprob[index]:.10g} and {item.trace.margin[index]:.10g}"
            for item in (pair.candidate, pair.baseline)
        )
    message = f"position {position} (token {index}): {what} {ours}, {other} {theirs}"
    return Finding(pair.candidate.request_id, step, message + _apart(trace, pair.baseline.trace, index))


def _apart(ours: Trace, theirs: Trace, index: int) -> str:
    """How far two rows are apart, as far as they are recorded."""
    if all(trace.header.level is RecordLevel.FULL for trace in (ours, theirs)):
        p, other = (softmax(trace.logits[index].astype(np.float64)) for trace in (ours, theirs))
        return f"; the laws are {0.5 * float(np.abs(p - other).sum()):.3g} apart in total variation"
    if len(ours.logprob) > index < len(theirs.logprob):
        return f"; the token's log-probability is {ours.logprob[index]:.4g} and {theirs.logprob[index]:.4g}"
    return ""


def _verdict(result: _Compared, params: Params) -> Verdict:
    if result.differing:
        return Verdict.FAULT
    whole = not (result.unread or result.unpaired)
    enough = result.positions >= int(params["min_positions"])
    return Verdict.CERTIFIED if enough and whole else Verdict.INCONCLUSIVE


def _summary(result: _Compared, params: Params) -> str:
    examined = f"{result.positions} positions of {len(result.again)} requests, each read again"
    if result.baseline:
        examined += f"; {result.baseline_positions} compared with the baseline"
    if result.differing:
        return f"{result.differing} rows of logits differ from those of the target alone: {examined}"
    for missing, words in ((result.unread, "were not read again"), (result.unpaired, "are in one arm only")):
        if missing:
            return f"{len(missing)} requests {words}, first {missing[0]}: {examined}, no row differs"
    if result.positions < int(params["min_positions"]):
        return f"fewer than {params['min_positions']} positions: {examined}, no row differs"
    return f"every row of logits is the target's own, bit by bit: {examined}"


CHECK = Check(
    name="bitwise",
    claim="bitwise",
    needs=Level.L1,
    defaults={"min_positions": 200, "force": False, "confidence": 0.99},
    run=_run,
    applies=never_excused,  # everything else depends on the parameters
    foresee=_foresee,
    null="every row of logits is that of the target alone, bit by bit",
    effect="differing positions per 1000",
    plan=at_least("min_positions", "positions read again"),
    companions=(ArmKind.REREAD,),
    covers=frozenset({Group.DRAFTING, Group.BATCH, Group.PROMPTS, Group.TREES, Group.CONTEXTS}),
    examines=read_again,
)
