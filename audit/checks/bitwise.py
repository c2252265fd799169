"""Bitwise equality: the candidate's deciding rows of logits are the baseline's, to the last bit.

Claim: bitwise. Null: at equal prefixes the target gave candidate and baseline
the same logits, regardless of the drafted tokens in the same pass. Statistic: the number of
positions whose digests differ; any is a fault, because the numerics mode promises
equal bits. Effect: differing positions per 1000; bound: its 99 % Clopper-Pearson
upper bound. Compares up to and including the first differing token of a pair,
where both still have the same prefix. Assumes that digests are of the rows that
decided (replay compares the two at record level `full`). Cannot see: a fault
that both arms share, or anything that happens to a row after the model gave it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.checks.interface import Check, Design, NoEvidence, Params
from audit.checks.plans import at_least
from audit.evidence.coverage.examined import until_parted
from audit.evidence.coverage.groups import Group
from audit.evidence.pairing import Pair, Pairing, compared, pair_arms
from audit.evidence.records import ArmRecord, Evidence, Level
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.stats.binomial import upper_bound
from engine.record.effective import EffectiveNumerics

PROMISES: Final = ("none", "chain", "tree", "everywhere")
"""Weakest promise first; each includes the ones before it."""
MAX_FINDINGS: Final = 20
NOT_REPORTED: Final = "the backend does not report numerics, so no bits are promised"


@dataclass(frozen=True, slots=True)
class _PairComparison:
    """One pair of requests: the number of compared positions and the indices [D] of those that differ."""

    pair: Pair
    positions: int
    differing: tuple[int, ...]

    def finding(self, index: int) -> Finding:
        """The finding for a row whose digests differ."""
        trace = self.pair.candidate.trace
        step = int(np.searchsorted(np.cumsum(trace.n_emitted, dtype=np.int64), index, side="right"))
        position = len(trace.header.prompt) + index
        ours, theirs = (
            f"{int(each.trace.logits_digest[index]):016x}" for each in (self.pair.candidate, self.pair.baseline)
        )
        message = f"position {position} (token {index}): the row's digest is {ours}, the baseline's {theirs}"
        return Finding(self.pair.candidate.request_id, step, message)


def _applies(evidence: Evidence) -> str | None:
    return NoEvidence("no baseline arm to compare with") if evidence.baseline is None else None


def _foresee(params: Params, design: Design) -> str | None:
    shown = design.shown
    if params["force"] or keeps(shown.promises, shown.shape):
        return None
    if shown.promises is None:
        return NOT_REPORTED
    return f"the numerics promise {shown.promises}, which is too little for a {shown.shape} proposer"


def _run(evidence: Evidence, params: Params) -> CheckResult:
    assert evidence.baseline is not None
    forced = bool(params["force"])
    reason = _no_promise(evidence.candidate, evidence.baseline, forced)
    if reason is not None:
        return CheckResult(Verdict.NOT_RUN, reason)
    pairing = pair_arms(evidence.candidate, evidence.baseline)
    for pair in pairing.pairs:
        problem = _incomparable(pair)
        if problem is not None:
            return CheckResult(Verdict.INCONCLUSIVE, problem)
    found = [_compare(pair) for pair in pairing.pairs]
    positions, differing = sum(each.positions for each in found), sum(len(each.differing) for each in found)
    findings = (each.finding(index) for each in found for index in each.differing)
    return CheckResult(
        verdict=_verdict(positions, differing, pairing, params),
        summary=_summary(positions, differing, pairing, params),
        n=positions,
        statistic=float(differing),
        effect=1000.0 * differing / positions if positions else None,
        bound=1000.0 * upper_bound(differing, positions, float(params["confidence"])) if positions else None,
        findings=tuple(finding for finding, _ in zip(findings, range(MAX_FINDINGS), strict=False)),
        details={
            "positions": positions,
            "differing": differing,
            "pairs": len(pairing.pairs),
            "pairs_differing": sum(bool(each.differing) for each in found),
            "unpaired": list(pairing.unpaired),
            "mode": _numerics(evidence.candidate).mode,
            "promises": _numerics(evidence.candidate).promises,
            "forced": forced,
        },
    )


NO_NUMERICS: Final = EffectiveNumerics(None, None, None, {})


def _numerics(arm: ArmRecord) -> EffectiveNumerics:
    return arm.effective.numerics or NO_NUMERICS


def _no_promise(candidate: ArmRecord, baseline: ArmRecord, forced: bool) -> str | None:
    """Why the bits of the two arms need not be equal, or None."""
    ours, theirs = _numerics(candidate), _numerics(baseline)
    if ours.mode != theirs.mode:
        return f"the candidate ran with numerics {ours.mode}, its baseline with {theirs.mode}"
    if forced:
        return None
    if not ours.facts or not theirs.facts:
        return NOT_REPORTED
    shape = candidate.effective.proposer_shape or "chain"
    needed = "tree" if shape == "tree" else "chain"
    for each in (ours, theirs):
        if not keeps(each.promises, shape):
            why = f": {each.reason}" if each.reason else ""
            return f"numerics {each.mode} promises {each.promises}, a {shape} proposer needs {needed}{why}"
    return None


def keeps(promises: str | None, shape: str) -> bool:
    """True if the promise covers passes with drafts of that shape."""
    needed = "tree" if shape == "tree" else "chain"
    return promises in PROMISES and PROMISES.index(promises) >= PROMISES.index(needed)


def _incomparable(pair: Pair) -> str | None:
    """Why a pair's rows cannot be compared, or None."""
    ours, theirs = pair.candidate, pair.baseline
    if ours.trace.header.prompt != theirs.trace.header.prompt:
        return f"request {ours.request_id} and its baseline have different prompts"
    for each in (ours, theirs):
        if len(each.trace.logits_digest) < len(each.tokens):
            return f"request {each.request_id} has no digests of its rows; record it at scalars or above"
    return None


def _compare(pair: Pair) -> _PairComparison:
    count = compared(pair)
    ours, theirs = pair.candidate.trace.logits_digest[:count], pair.baseline.trace.logits_digest[:count]
    return _PairComparison(pair, count, tuple(int(index) for index in np.flatnonzero(ours != theirs)))


def _verdict(positions: int, differing: int, pairing: Pairing, params: Params) -> Verdict:
    if differing:
        return Verdict.FAULT
    enough = positions >= int(params["min_positions"]) and not pairing.unpaired
    return Verdict.CERTIFIED if enough else Verdict.INCONCLUSIVE


def _summary(positions: int, differing: int, pairing: Pairing, params: Params) -> str:
    compared_with = f"{positions} positions of {len(pairing.pairs)} pairs compared"
    if differing:
        return f"{differing} rows of logits differ from the baseline's: {compared_with}"
    if pairing.unpaired:
        cases = f"{len(pairing.unpaired)} cases are in one arm only, first {pairing.unpaired[0]}"
        return f"{cases}: {compared_with}, no row differs"
    if positions < int(params["min_positions"]):
        return f"fewer than {params['min_positions']} positions: {compared_with}, no row differs"
    return f"every row of logits is the baseline's, bit by bit: {compared_with}"


CHECK = Check(
    name="bitwise",
    claim="bitwise",
    needs=Level.L1,
    defaults={"min_positions": 200, "force": False, "confidence": 0.99},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="every row of logits is the baseline's, bit by bit",
    effect="share of positions that differ",
    plan=at_least("min_positions", "compared positions"),
    covers=frozenset({Group.DRAFTING, Group.BATCH, Group.PROMPTS, Group.TREES, Group.CONTEXTS}),
    examines=until_parted,
)
