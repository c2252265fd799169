"""Row closeness: every deciding row is an independent pass's row, within the noise of plain decoding.

Claim: rows. Null: at every emitted token of this run the recorded row is that of an independent pass of the target over
the same text, as close as the rows of the target alone are. Statistic: positions beyond that noise (the limits of
`audit.evidence.anchor.judgement`); any is a fault. Every position of the anchor arm is compared, so that the verdict is
about these positions and needs no sample of prompts. Bound: the 99 % Clopper-Pearson upper bound of their share.
The noise must have been measured: at `min_noise` positions or more, mostly of the baseline's own answers; and it must
be rounding: plain decoding that is anywhere further than `most_noise` from the reference, or in 16 bits further than
`half_noise` on average, shows another model, or a precision that the record does not state, and certifies nothing.
Stands in where the numerics promise no equal bits; where they do, `bitwise` compares the bits. Assumes that a row of a
batch with drafts is no noisier than the factor allows. Cannot see: what happens to a row after it was recorded, rows
that decided no emitted token, or wrong files.
"""

from typing import Final

from audit.checks.base.interface import Check, Design, needs_anchor, needs_reference
from audit.evidence.anchor.judgement import DEFAULTS, AnchorResult, anchored_rows, numbers
from audit.evidence.coverage.examined import anchored
from audit.evidence.coverage.groups import Group
from audit.evidence.precision import beyond_rounding
from audit.evidence.promises import keeps, promised
from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import CheckResult, Params, Verdict
from audit.stats.binomial import upper_bound
from engine.backends.evidence import Part

PROMISED: Final = "the numerics promise equal bits, which bitwise compares"
LIMITS: Final = (
    *("distance_factor", "lead_factor", "least_distance", "least_lead", "min_noise", "position_margin", "lead_margin"),
    "max_findings",
)


def _foresee(params: Params, design: Design) -> str | None:
    shown = design.shown
    if shown.gives(Part.REREAD) and keeps(shown.promises, shown.shape):
        return PROMISED
    return needs_reference(params, design)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    result = anchored_rows(evidence, params)
    if isinstance(result, str):
        return CheckResult(Verdict.INCONCLUSIVE, result)
    beyond, n = len(result.findings), result.positions
    rounding = beyond_rounding(result.noise, evidence.candidate.effective, params, "in total variation")
    return CheckResult(
        verdict=_verdict(result, rounding),
        summary=_summary(result, rounding),
        n=n,
        statistic=float(beyond),
        effect=beyond / n if n else None,
        bound=upper_bound(beyond, n, float(params["confidence"])) if n else None,
        findings=result.findings[: int(params["max_findings"])],
        details=numbers(result),
    )


def _verdict(result: AnchorResult, rounding: str) -> Verdict:
    if result.findings:
        return Verdict.FAULT
    measured = result.limits.measured and not rounding
    return Verdict.CERTIFIED if result.positions and measured else Verdict.INCONCLUSIVE


def _summary(result: AnchorResult, rounding: str) -> str:
    n, limits = result.positions, result.limits
    if result.findings:
        first = result.findings[0]
        share = f"{len(result.findings)} of {n} rows are further from the reference's than noise"
        return f"{share}; first in {first.request}, step {first.step}: {first.message}"
    if not limits.measured:
        return f"the noise of plain decoding was measured at too few positions to judge {n} rows; add prompts"
    if rounding:
        return rounding
    largest = max((float(request.plain.max(initial=0.0)) for request in result.requests), default=0.0)
    return (
        f"{n} rows of {len(result.requests)} requests beside the reference's: at most {largest:.2g} in total variation "
        f"apart, noise allows {limits.distance:.2g} from {limits.measured} positions of plain decoding"
    )


CHECK = Check(
    name="row_closeness",
    claim="rows",
    needs=Level.L2,
    defaults={"confidence": 0.99, "most_noise": 0.01, "half_noise": 0.1, **{name: DEFAULTS[name] for name in LIMITS}},
    run=_run,
    applies=lambda evidence: PROMISED if promised(evidence.candidate.effective) else needs_anchor(evidence),
    foresee=_foresee,
    null="every deciding row is the reference's, within the noise of plain decoding",
    effect="share of rows beyond noise",
    companions=(ArmKind.ANCHOR, ArmKind.NOISE),
    covers=frozenset({Group.DRAFTING, Group.BATCH}),
    examines=anchored,
)
