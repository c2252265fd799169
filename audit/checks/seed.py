"""Seed: the same seed gives the same tokens, again, alone, and in another order.

Claim: seed. Null: a request's tokens are a function of its prompt, its parameters, its seed and its stream, up to the
engine's numerical noise. Statistic: requests whose tokens differ for real between the candidate and its companion arms
`repeat` (unchanged), `alone` (one request at a time) and `reversed` (the requests in reverse order); any is a fault,
and the finding says which arm failed. A difference is numerical where the choice was within measured noise, untriaged
where the noise is not recorded; more untriaged differences than noise can explain are also a fault. Effect: the share
of requests that differ in the worst arm; bound: its 99 % Clopper-Pearson upper bound. Assumes requests that differ
independently. Proposers that learn from finished requests may draft other tokens in another order; where rejection then
emits others, the request is left out. Cannot see: an engine that uses a fixed seed other than the requested one (see
replay), or a difference that appears only at a larger batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from audit.checks.base.interface import Check
from audit.checks.base.plans import plan_requests
from audit.errors import UserError
from audit.evidence.divergence.rerun import KINDS, Rerun, compare
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, NoEvidence, Params, Verdict
from audit.stats.binomial import lower_bound, upper_bound
from audit.stats.power import replay_effect

ARMS = (ArmKind.REPEAT, ArmKind.ALONE, ArmKind.REVERSED)


@dataclass(frozen=True, slots=True)
class CompanionComparison:
    """One companion arm: `left_out` requests had a legitimate reason to draft other tokens, `n` remain."""

    rerun: Rerun
    left_out: int
    n: int
    real: int
    untriaged: int
    numerical: int

    @property
    def bound(self) -> float:
        """99 % upper bound on the share of requests that differ for real."""
        return upper_bound(self.real, self.n)


UNSEEDED = "the requests carry no seed (engine.seeds: none)"


def _applies(evidence: Evidence) -> str | None:
    if evidence.candidate.effective.facts.get("seeds") == "none":
        return UNSEEDED
    if not any(kind in evidence.companions for kind in ARMS):
        return NoEvidence("there is no arm repeat, alone or reversed to compare with")
    return None


def _judged(rerun: Rerun, *, shared: bool) -> CompanionComparison:
    drafts = rerun.count("drafts")
    left_out = drafts if shared else 0
    untriaged = rerun.count("untriaged") + drafts - left_out
    n = rerun.pairs - left_out
    return CompanionComparison(rerun, left_out, n, rerun.count("real"), untriaged, rerun.count("numerical"))


def _run(evidence: Evidence, params: Params) -> CheckResult:
    shared = evidence.candidate.effective.shares_state
    judged = [_judged(compare(evidence, kind), shared=shared) for kind in ARMS if kind in evidence.companions]
    problem = next((item.rerun.problem for item in judged if item.rerun.problem), None)
    if problem is not None:
        return CheckResult(Verdict.INCONCLUSIVE, problem)
    n = min(item.n for item in judged)
    if n == 0:
        reason = (
            "every request drafted other tokens, as its proposer may" if judged[0].left_out else "no shared request"
        )
        return CheckResult(Verdict.NOT_RUN if judged[0].left_out else Verdict.INCONCLUSIVE, reason)
    verdict, reason = _decide(judged, params)
    worst = max(judged, key=lambda item: item.bound)
    every = [(item.rerun.arm, difference) for item in judged for difference in item.rerun.differences]
    broken = sorted(every, key=lambda pair: KINDS.index(pair[1].kind))
    return CheckResult(
        verdict=verdict,
        summary=f"{reason}: {', '.join(map(_counts, judged))}; at most {worst.bound:.3g} of requests differ (99 %)",
        n=n,
        statistic=float(sum(item.real for item in judged)),
        effect=max(item.real / item.n for item in judged),
        bound=worst.bound,
        margin=float(params["margin"]),
        detectable=replay_effect(n),
        findings=tuple(difference.finding(kind) for kind, difference in broken[:MAX_FINDINGS]),
        details={str(item.rerun.arm): _row(item) for item in judged},
    )


def _decide(judged: Sequence[CompanionComparison], params: Params) -> tuple[Verdict, str]:
    arms = [str(item.rerun.arm) for item in judged]
    real = [str(item.rerun.arm) for item in judged if item.real]
    if real:
        return Verdict.FAULT, f"the seed does not fix the tokens in: {', '.join(real)}"
    confidence, most = 1.0 - float(params["alpha"]) / len(judged), float(params["max_untriaged"])
    many = [str(item.rerun.arm) for item in judged if lower_bound(item.untriaged, item.n, confidence) > most]
    if many:
        return Verdict.FAULT, f"more requests differ than near-ties explain in: {', '.join(many)}"
    missing = [name for name in params["arms"] if name not in arms]
    if missing:
        return Verdict.INCONCLUSIVE, f"not compared with: {', '.join(missing)}"
    if any(item.untriaged for item in judged):
        return Verdict.INCONCLUSIVE, "differences cannot be triaged"
    unpaired = next((item.rerun.unpaired for item in judged if item.rerun.unpaired), ())
    if unpaired:
        return Verdict.INCONCLUSIVE, f"the candidate lacks case {unpaired[0]}"
    if max(item.bound for item in judged) > float(params["margin"]):
        return Verdict.INCONCLUSIVE, f"too few requests for the margin {params['margin']:g}"
    return Verdict.CERTIFIED, "the same tokens up to noise"


def _counts(comparison: CompanionComparison) -> str:
    counts = {
        "real": comparison.real,
        "untriaged": comparison.untriaged,
        "numerical": comparison.numerical,
        "left out": comparison.left_out,
    }
    split = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{comparison.rerun.arm} {comparison.n} requests ({split or 'no difference'})"


def _row(comparison: CompanionComparison) -> dict[str, Any]:
    return {
        "requests": comparison.n,
        "tokens": comparison.rerun.tokens,
        "differ": {kind: comparison.rerun.count(kind) for kind in KINDS},
        "left_out": comparison.left_out,
        "bound": comparison.bound,
    }


def _accept(params: Params) -> None:
    unknown = [str(name) for name in params["arms"] if name not in list(map(str, ARMS))]
    if unknown:
        raise UserError(f"seed: there is no companion {unknown[0][:60]!r}; there are: {', '.join(map(str, ARMS))}")


CHECK = Check(
    name="seed",
    claim="seed",
    defaults={"margin": 0.3, "alpha": 0.001, "max_untriaged": 0.5, "arms": [str(kind) for kind in ARMS]},
    run=_run,
    applies=_applies,
    foresee=lambda _params, design: None if design.shown.seeded else UNSEEDED,
    null="a request's tokens are a function of its prompt, parameters, seed and stream, up to noise",
    effect="share of requests that differ",
    plan=plan_requests,
    companions=ARMS,
    accept=_accept,
)
