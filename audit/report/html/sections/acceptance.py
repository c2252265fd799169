"""Acceptance and speed: how many drafted tokens were kept, where, when, and as theory has it; and times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.report.html.charts import SERIES, Chart, longest
from audit.report.html.registry import Nothing, ReportSection, ReportSource
from audit.report.tables.acceptance import ArmAcceptance, ArmEstimates, RunAcceptance, run_acceptance

DRAWN: Final = 12
"""Most arms of a chart; the tables have all."""
WIDTH: Final = 620
"""Width of a row of drawings, which the page scales to its own."""
COLUMNS: Final = 4
"""Drawings in a row."""
GAP: Final = 16
RATE: Final = {"domain": [0, 1]}
KINDS: Final = ("unconditional", "conditional")


@dataclass(frozen=True, slots=True)
class AcceptancePage:
    """The acceptance of a run with its charts.

    theory: one of the charts compares with theory. left_out: arms that the charts do not show.
    """

    run: RunAcceptance
    estimates: tuple[ArmEstimates, ...]
    charts: tuple[Chart, ...]
    theory: bool
    left_out: int


def read(source: ReportSource) -> AcceptancePage | Nothing:
    """The acceptance of a run."""
    made = run_acceptance(source.store, source.results.run, source.results.checks)
    if not made.arms and not made.latencies:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in made.silent) or "it has no candidate"
        return Nothing(f"No arm of this run has drafts or times on record ({reasons}).")
    arms = made.arms[:DRAWN]
    against = theory(arms)
    charts = (by_place(arms), lengths(arms), by_domain(arms), over_requests(arms), against)
    drawn = tuple(chart for chart in charts if chart.rows)
    return AcceptancePage(made, source.results.estimates, drawn, bool(against.rows), len(made.arms) - len(arms))


def by_place(arms: Sequence[ArmAcceptance]) -> Chart:
    """Both rates of each place in the draft."""
    rows = tuple(
        (arm.arm.name, place.place, kind, rate, place.kept, of)
        for arm in arms
        for place in arm.places
        for kind, rate, of in zip(
            KINDS, (place.unconditional, place.conditional), (place.steps, place.reached), strict=True
        )
        if rate is not None
    )
    # the title names both lines, so that nobody needs a legend, or colours
    series = {"field": "kind", "type": "nominal", "sort": list(KINDS), "legend": None}
    return Chart(
        title="Acceptance by position in the draft: unconditional (solid, dots) and conditional (dashed, squares)",
        description="Unconditional: steps that kept at least this many drafted tokens, of all steps with a draft. "
        "Conditional: of the steps that kept all tokens before this position and drafted this far; in a tree, of all "
        "that kept the tokens before, which makes it a lower bound.",
        columns=("arm", "position", "rate of", "rate", "kept", "of steps"),
        fields=("arm", "place", "kind", "rate", "kept", "of"),
        rows=rows,
        spec=_panels(
            arms,
            {"type": "line", "point": True},
            x={"field": "place", "type": "ordinal", "title": "position", "axis": {"labelAngle": 0}},
            y={"field": "rate", "type": "quantitative", "title": "accepted", "scale": RATE},
            color=series,
            strokeDash={**series, "scale": {"range": [[1, 0], [4, 3]]}},
            shape=series,
        ),
    )


def lengths(arms: Sequence[ArmAcceptance]) -> Chart:
    """The distribution of accepted drafted tokens per step."""
    rows = tuple(
        (arm.arm.name, length.accepted, length.steps, length.steps / length.of)
        for arm in arms
        for length in arm.lengths
    )
    return Chart(
        title="Drafted tokens accepted per step",
        description="Share of the steps with a draft that accepted exactly this many drafted tokens.",
        columns=("arm", "accepted tokens", "steps", "share"),
        fields=("arm", "accepted", "steps", "share"),
        rows=rows,
        spec=_panels(
            arms,
            "bar",
            x={"field": "accepted", "type": "ordinal", "title": "accepted", "axis": {"labelAngle": 0}},
            y={"field": "share", "type": "quantitative", "title": "share of steps"},
        ),
    )


def by_domain(arms: Sequence[ArmAcceptance]) -> Chart:
    """Acceptance of each domain."""
    rows = tuple(
        (arm.arm.name, one.domain, one.accepted / one.drafted, one.accepted, one.drafted)
        for arm in arms
        for one in arm.domains
        if one.drafted and one.accepted is not None
    )
    return Chart(
        title="Acceptance by domain",
        description="Accepted of drafted tokens, pooled over the requests of a domain.",
        columns=("arm", "domain", "rate", "accepted", "drafted"),
        fields=("arm", "domain", "rate", "accepted", "drafted"),
        rows=rows,
        spec=_panels(
            arms,
            {"type": "bar", "height": {"band": 0.6}},
            height={"step": 18},
            y=_names("domain", [row[1] for row in rows]),
            x={"field": "rate", "type": "quantitative", "title": "accepted of drafted", "scale": RATE}
            | {"axis": {"values": [0, 0.5, 1]}},
        ),
    )


def over_requests(arms: Sequence[ArmAcceptance]) -> Chart:
    """Acceptance in the order in which requests finished."""
    rows = tuple(
        (arm.arm.name, span.first, span.last, span.accepted / span.drafted, span.accepted, span.drafted)
        for arm in arms
        for span in arm.spans
        if span.drafted
    )
    return Chart(
        title="Acceptance over the run",
        description="Accepted of drafted tokens over spans of equally many requests, in the order in which the "
        "requests of the arm finished. Domains that follow one another show as steps.",
        columns=("arm", "first request", "last request", "rate", "accepted", "drafted"),
        fields=("arm", "first", "last", "rate", "accepted", "drafted"),
        rows=rows,
        spec=_panels(
            arms,
            {"type": "line", "point": {"size": 18}},
            height=90,
            x={"field": "last", "type": "quantitative", "title": "requests", "axis": {"tickCount": 4}},
            y={"field": "rate", "type": "quantitative", "title": "accepted", "scale": RATE},
        ),
    )


def theory(arms: Sequence[ArmAcceptance]) -> Chart:
    """Observed acceptance of each stratum beside that of p, q and the rule."""
    observed: dict[str, Any] = {"type": "point", "shape": "circle"}
    rows = tuple(_strata(arms))
    columns = min(2, max(1, len({row[0] for row in rows})))
    rate = {"type": "quantitative", "title": "kept of drafted positions", "scale": RATE}
    names = _names("stratum", [row[1] for row in rows])
    return Chart(
        title="Acceptance against theory",
        description="Dot: share of drafted positions whose token was kept. Tick: the share that the recorded p and q "
        "give under the declared rule (check acceptance_theory), by stratum.",
        columns=("arm", "stratum", "positions", "kept", "expected", "observed rate", "rate by theory", "adjusted p"),
        fields=("arm", "stratum", "n", "kept", "expected", "observed", "theory", "p"),
        rows=rows,
        spec={
            # not a facet, which would draw the axis of an empty place in the last row
            "concat": [
                {
                    "title": {"text": name, "fontSize": 12, "color": "var(--ink)"},
                    "transform": [{"filter": {"field": "arm", "equal": name}}],
                    "width": (WIDTH - 90 * columns) // columns,
                    "height": {"step": 17},
                    "layer": [
                        {
                            "mark": {"type": "tick", "thickness": 2.5, "size": 14, "color": SERIES[1]},
                            "encoding": {"x": {"field": "theory", **rate}, "y": names},
                        },
                        {"mark": observed, "encoding": {"x": {"field": "observed", **rate}, "y": names}},
                    ],
                }
                for name in dict.fromkeys(row[0] for row in rows)
            ],
            "columns": columns,
            "spacing": GAP,
        },
    )


def _strata(arms: Sequence[ArmAcceptance]) -> Iterator[tuple[Any, ...]]:
    for arm in arms:
        for one in arm.theory:
            n, observed, expected = (one[name] for name in ("n", "observed", "expected"))
            yield arm.arm.name, one["name"], n, observed, expected, observed / n, expected / n, one.get("p_adjusted")


def _names(field: str, names: Sequence[str]) -> dict[str, Any]:
    """An axis of names, wide enough for fonts that are wider than the one that the drawing is laid out with."""
    return {"field": field, "type": "nominal", "title": None, "sort": None, "axis": {"minExtent": 7 * longest(names)}}


def _panels(arms: Sequence[ArmAcceptance], mark: Any, height: Any = 110, **encoding: Any) -> dict[str, Any]:
    """One small drawing per arm, side by side on equal scales, of a mark and its channels."""
    columns = min(COLUMNS, max(len(arms), 1))
    width = (WIDTH - GAP * (columns - 1)) // columns
    return {
        "facet": {"field": "arm", "type": "nominal", "title": None, "sort": [arm.arm.name for arm in arms]},
        "columns": columns,
        "spacing": GAP,
        "spec": {"width": width, "height": height, "mark": mark, "encoding": encoding},
    }


SECTION: Final = ReportSection(
    "acceptance",
    "Acceptance and speed",
    "How many drafted tokens were kept, as theory has it, and what did speculation gain?",
    read,
)
