"""Charts of runs over time: acceptance by group, and verdicts by run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from audit.evidence.verdicts import Verdict
from audit.report.html.charts import SERIES, Chart
from audit.store.browse.trends import ArmSums, TrendRun

OTHERS: Final = "others"
COLOURS: Final[Mapping[Verdict, str]] = {
    Verdict.CERTIFIED: "var(--good)",
    Verdict.FAULT: "var(--bad)",
    Verdict.INCONCLUSIVE: "var(--open)",
    Verdict.NOT_RUN: "var(--line)",
}
WIDTH: Final = 620


class Grouping(StrEnum):
    """The key of each line of a chart."""

    SUITE = "suite"
    MODEL = "model"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """A run with the counts of its candidate arms; none for an endpoint's."""

    run: TrendRun
    arms: tuple[ArmSums, ...]


@dataclass(frozen=True, slots=True)
class TrendLine:
    """One run as a point: counts over the chosen arms, None where nothing was drafted."""

    run: TrendRun
    group: str
    drafted: int | None
    accepted: int | None
    output: int | None
    steps: int | None

    @property
    def acceptance(self) -> float | None:
        """Accepted of drafted tokens."""
        return None if not self.drafted or self.accepted is None else self.accepted / self.drafted

    @property
    def tokens_per_step(self) -> float | None:
        """Emitted tokens per step, which count recovered and bonus tokens."""
        return None if not self.steps or self.output is None else self.output / self.steps


@dataclass(frozen=True, slots=True)
class Trends:
    """The runs, oldest first, the charts that have something to draw, and the names of candidate arms."""

    lines: tuple[TrendLine, ...]
    charts: tuple[Chart, ...]
    arms: tuple[str, ...]


def trends(points: Sequence[TrendPoint], by: Grouping, arm: str) -> Trends:
    """Charts of runs, oldest first, with a line for each value of `by`.

    `arm` is the one arm to count; empty for all candidate arms of a run together.
    """
    lines = tuple(_line(point, by, arm) for point in points)
    drawn = [line for line in lines if line.acceptance is not None]
    charts = [_acceptance(drawn, by, arm)] if drawn else []
    charts += [_verdicts(lines)] if any(line.run.verdicts for line in lines) else []
    arms = Counter(sums.arm for point in points for sums in point.arms)
    return Trends(lines, tuple(charts), tuple(sorted(arms)))


def _line(point: TrendPoint, by: Grouping, arm: str) -> TrendLine:
    counted = [sums for sums in point.arms if arm in ("", sums.arm)]
    group = str(getattr(point.run, by.value))
    if not counted:
        return TrendLine(point.run, group, None, None, None, None)
    names = ("drafted", "accepted", "output", "steps")
    return TrendLine(point.run, group, *(sum(getattr(sums, name) for sums in counted) for name in names))


def _acceptance(lines: Sequence[TrendLine], by: Grouping, arm: str) -> Chart:
    frequent = {group for group, _ in Counter(line.group for line in lines).most_common(len(SERIES) - 1)}
    rows = tuple(
        (
            f"{line.run.started_at:%Y-%m-%dT%H:%M:%SZ}",
            line.group if line.group in frequent else OTHERS,
            line.run.ulid,
            line.accepted,
            line.drafted,
            line.acceptance,
        )
        for line in lines
    )
    return Chart(
        title="Draft acceptance rate by run",
        description=f"Accepted of drafted tokens of {f'arm {arm}' if arm else 'all candidate arms'} of each run, over "
        f"the start of the run; a line for each {by.value}.",
        columns=("started", by.value, "run", "accepted", "drafted", "rate"),
        fields=("started", "group", "run", "accepted", "drafted", "rate"),
        rows=rows,
        spec={"width": WIDTH, "height": 220, "encoding": _over_time(), "layer": [{"mark": "line"}, {"mark": "point"}]},
    )


def _over_time() -> dict[str, Any]:
    axis = {"title": "start of the run (UTC)", "format": "%m-%d %H:%M", "tickCount": 6, "labelOverlap": True}
    return {
        "x": {"field": "started", "type": "temporal", "scale": {"type": "utc"}, "axis": axis},
        "y": {"field": "rate", "type": "quantitative", "title": "accepted of drafted", "scale": {"domain": [0, 1]}},
        "color": {"field": "group", "type": "nominal", "title": None, "legend": {"orient": "top", "labelLimit": 400}},
    }


def _verdicts(lines: Sequence[TrendLine]) -> Chart:
    rows = tuple(
        (place, line.run.ulid, _words(verdict), line.run.verdicts[verdict])
        for place, line in enumerate(lines, start=1)
        for verdict in Verdict
        if line.run.verdicts.get(verdict)
    )
    return Chart(
        title="Verdicts by run",
        description="Valid results of each run by verdict, the oldest run first.",
        columns=("place", "run", "verdict", "results"),
        fields=("place", "run", "verdict", "results"),
        rows=rows,
        spec={
            "width": WIDTH,
            "height": 160,
            "mark": {"type": "bar", "width": min(40, max(2, WIDTH // len(lines) - 3))},
            "encoding": _stacked(),
        },
    )


def _words(verdict: Verdict) -> str:
    return verdict.value.replace("_", " ")


def _stacked() -> dict[str, Any]:
    scale = {"domain": [_words(verdict) for verdict in COLOURS], "range": list(COLOURS.values())}
    return {
        "x": {"field": "place", "type": "ordinal", "title": "run, oldest first", "axis": {"labelAngle": 0}},
        "y": {"field": "results", "type": "quantitative", "title": "results"},
        "color": {"field": "verdict", "type": "nominal", "title": None, "scale": scale, "legend": {"orient": "top"}},
    }
