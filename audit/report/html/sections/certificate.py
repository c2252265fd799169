"""The certificate: each bound against its margin, what the evidence used, and how much would have been enough.

The tokens needed are a plan with the run's own spread, where the check recorded it, and with the check's assumed
spread otherwise. The plan sees one check at a time: it knows neither interim looks nor situations that are too rare.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit import checks as registry
from audit.checks.base.interface import Check, Design, PlanAssumptions
from audit.evidence.verdicts import Verdict
from audit.report.html.charts import SERIES, Chart
from audit.report.html.registry import Nothing, ReportSection, ReportSource
from audit.runs.sizing import measured_spread
from audit.stats.power import MOST
from audit.stats.sample_size import SampleSize
from audit.store import StoredArm, StoredCheck
from engine.core.types import RecordLevel

LOWER: Final = frozenset({"performance"})
"""Checks whose bound is a lower one: the claim holds where it is above the margin."""
WIDEST: Final = 3.0
"""Multiples of the margin that the drawing reaches; a longer interval is drawn as ending there."""


@dataclass(frozen=True, slots=True)
class CheckBound:
    """One check's bound.

    unit: of effect, bound and margin. needed: sampling units of the check's plan, whose unit is `of`; None where any
    amount decides or no amount would. tokens: tokens of the arm. tokens_needed: these in the ratio of units needed
    to units seen.
    """

    check: StoredCheck
    unit: str
    lower: bool
    needed: int | None
    of: str
    tokens: int
    tokens_needed: int | None


@dataclass(frozen=True, slots=True)
class CheckBounds:
    """Bounds with a margin, bounds of claims without tolerance, and the drawing of the first."""

    margins: tuple[CheckBound, ...]
    strict: tuple[CheckBound, ...]
    chart: Chart | None


def read(source: ReportSource) -> CheckBounds | Nothing:
    """The bounds of a run."""
    bounds = tuple(_bounds({arm.name: arm for arm in source.results.run.arms}, source.results.checks))
    if not bounds:
        return Nothing("No check of this run has a bound: none ran, or none had the evidence for one.")
    margins = tuple(bound for bound in bounds if bound.check.margin)
    return CheckBounds(margins, tuple(bound for bound in bounds if not bound.check.margin), _chart(margins))


def _bounds(arms: Mapping[str, StoredArm], checks: tuple[StoredCheck, ...]) -> Iterator[CheckBound]:
    for check in checks:
        if check.bound is None or check.verdict is Verdict.NOT_RUN:
            continue
        arm, loaded = arms[check.arm], registry.known(check.check)
        need = None if loaded is None else _need(loaded, arm, check)
        units = need.units if need is not None and 0 < need.units < MOST else None
        yield CheckBound(
            check=check,
            unit="" if loaded is None else loaded.effect,
            lower=check.check in LOWER,
            needed=units,
            of="" if need is None else need.unit,
            tokens=arm.counts.output,
            tokens_needed=math.ceil(arm.counts.output * units / check.n) if units and check.n else None,
        )


def _need(check: Check, arm: StoredArm, result: StoredCheck) -> SampleSize | None:
    """The sample that the check plans, at the spread that the run measured."""
    sampling: Mapping[str, Any] = arm.spec.get("sampling") or {}
    asked: Mapping[str, Any] = (arm.spec.get("judged") or {}).get("checks") or {}
    design = Design(
        requests=arm.counts.requests,
        prompts=arm.counts.requests,
        tokens=arm.counts.output,
        gamma=arm.effective.gamma or 0,
        greedy=not sampling.get("temperature"),
        level=arm.level,
        record=_record(arm),
        assumed=PlanAssumptions(measured_spread(result)),
    )
    return check.plan({**check.defaults, **(asked.get(check.name) or {})}, design)


def _record(arm: StoredArm) -> RecordLevel:
    known = {level.value: level for level in RecordLevel}
    return known.get(arm.effective.record or "", RecordLevel.FULL)


def _chart(bounds: tuple[CheckBound, ...]) -> Chart | None:
    rows = tuple(_row(bound) for bound in bounds if bound.check.effect is not None)
    if not rows:
        return None
    return Chart(
        title="Bound against margin",
        description=(
            "Each line runs from the estimate (dot) to the bound, as multiples of the check's margin. A claim is "
            "certified where the bound does not pass the margin, the rule at 1; for a speed-up, where it does. "
            f"The drawing ends at {WIDEST:g} multiples; the numbers do not."
        ),
        columns=("arm and check", "estimate / margin", "bound / margin", "verdict"),
        fields=("name", "estimate", "bound", "verdict"),
        rows=rows,
        spec=_spec(rows),
    )


def _row(bound: CheckBound) -> tuple[Any, ...]:
    check = bound.check
    margin = check.margin or 1.0
    ends = ((end or 0.0) / margin for end in (check.effect, check.bound))
    return (f"{check.arm}: {check.check}", *ends, check.verdict.value.replace("_", " "))


def _spec(rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    ends = [0.0, 1.0, *(end for _, estimate, bound, _ in rows for end in (estimate, bound))]
    scale = {"domain": [max(-WIDEST, min(ends)), min(WIDEST, max(ends))], "clamp": True}
    colours = {"certified": "var(--good)", "fault": "var(--bad)", "inconclusive": "var(--open)"}
    y = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"domain": False, "ticks": False}}
    x: dict[str, Any] = {"field": "estimate", "type": "quantitative", "title": "multiples of the margin"}
    x |= {"axis": {"tickCount": 6}, "scale": scale}
    colour = {
        "field": "verdict",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [*colours], "range": [*colours.values()]},
        "legend": {"orient": "top", "offset": 4},
    }
    return {
        "width": 420,
        "height": {"step": 22} if len(rows) > 2 else 60,
        "encoding": {"y": y},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {"x": {"datum": 1}, "y": None}},
            {"mark": {"type": "bar", "height": 3}, "encoding": {"x": x, "x2": {"field": "bound"}, "color": colour}},
            {"mark": {"type": "point", "size": 60, "opacity": 1}, "encoding": {"x": x, "color": colour}},
            {
                "mark": {"type": "tick", "thickness": 3, "size": 13},
                "encoding": {"x": {"field": "bound", "type": "quantitative"}, "color": colour},
            },
        ],
        "config": {"range": {"category": list(SERIES)}},
    }


SECTION: Final = ReportSection(
    "certificate",
    "Certificate",
    "How far could the output be from the target's, at most, and was there enough evidence to say so?",
    read,
)
