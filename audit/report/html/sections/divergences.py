"""First divergences: where outputs part from the baseline's, both continuations, and whether noise explains it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.report.html.charts import Chart
from audit.report.html.registry import Nothing, ReportSection, ReportSource
from audit.report.requests.choice import findings_by_request
from audit.report.requests.divergences import KINDS, LEADS, ArmDivergences, RunDivergences, run_divergences
from audit.report.requests.pieces import recorded_pieces


@dataclass(frozen=True, slots=True)
class DivergencePage:
    """The divergences of a run, what their kinds mean, and the leads of each arm as a drawing."""

    run: RunDivergences
    kinds: Mapping[str, str]
    charts: Mapping[str, Chart]


def read(source: ReportSource) -> DivergencePage | Nothing:
    """The divergences of a run."""
    results = source.results
    pieces = recorded_pieces(source.store, results.run)
    made = run_divergences(source.store, results.run, results.checks, pieces, findings_by_request(results.checks))
    if not made.arms:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in made.silent) or "it has no candidate"
        return Nothing(f"No arm of this run was compared with its baseline token by token ({reasons}).")
    return DivergencePage(made, KINDS, {arm.arm.name: leads(arm) for arm in made.arms if arm.leads})


def leads(arm: ArmDivergences) -> Chart:
    """The leads of an arm's divergences beside the noise bound."""
    bound = None if arm.noise is None else arm.noise.bound
    rows = tuple((number, lead, bound) for number, lead in enumerate(arm.leads, start=1))
    x: dict[str, Any] = {"type": "quantitative", "title": f"lead of the baseline's token ({arm.unit})"}
    drawn: list[dict[str, Any]] = [
        {
            "mark": {"type": "tick", "thickness": 1.5, "size": 26, "opacity": 0.7},
            "encoding": {"x": {"field": "lead", **x}},
        }
    ]
    if bound is not None:
        drawn.append(
            {
                "mark": {"type": "rule", "strokeWidth": 2, "strokeDash": [5, 3]},
                "encoding": {"x": {"field": "bound", "aggregate": "max", **x}},
            }
        )
    cut = "" if len(arm.leads) < LEADS else f" The first {LEADS} are drawn."
    return Chart(
        title=f"{arm.arm.name}: leads at the divergences (ticks) against the noise bound (dashed)",
        description="Each tick is one divergence: by how much the baseline's own row prefers its token to the "
        f"candidate's. Left of the noise bound it is a near-tie, right of it a real difference.{cut}",
        columns=("divergence", "lead", "noise bound"),
        fields=("number", "lead", "bound"),
        rows=rows,
        spec={"width": 560, "height": 40, "layer": drawn},
    )


SECTION: Final = ReportSection(
    "divergences",
    "First divergences",
    "Where does an output part from the target's own, and does the engine's noise explain it?",
    read,
)
