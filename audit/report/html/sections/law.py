"""The law of the emitted tokens: transforms, evidence for named faults over tokens, and the tests of the stored check.

Drawings are computed from the record again, from the first requests of each arm, because that takes a millisecond per
token; the tests and the ranking are those that the check stored over all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from audit.errors import CannotDecide
from audit.evidence.decisions import unreadable
from audit.evidence.law.table import LawEvidence, request_by_request
from audit.evidence.random_numbers import seed_of
from audit.evidence.records import RequestRecord
from audit.evidence.verdicts import Verdict
from audit.report.html.charts import Chart
from audit.report.html.registry import Nothing, ReportSection, ReportSource
from audit.stats.binomial import count_range
from audit.store import StoredCheck
from engine.core.types import RecordLevel

if TYPE_CHECKING:
    from engine.core.types import Floats

CHECK: Final = "law"
TOKENS: Final = 8_000
"""Tokens that a page reads for its drawings, the same number in each arm; the last request is read whole."""
NUMBERS: Final = 200_000_000
"""Probabilities that a page reads for the drawings of arms that keep whole rows."""
BINS: Final = 20
POINTS: Final = 400
"""Points of a line; a longer one keeps every k-th and its last."""


@dataclass(frozen=True, slots=True)
class LawDrawings:
    """Drawings of one arm from its first requests, which have `tokens` of the arm's `of_tokens`."""

    tokens: int
    of_tokens: int
    histogram: Chart
    process: Chart | None


@dataclass(frozen=True, slots=True)
class ArmLaw:
    """The law of one arm: the stored result, and drawings, or why there are none."""

    check: StoredCheck
    alternatives: Sequence[Mapping[str, Any]]
    components: Sequence[Mapping[str, Any]]
    drawings: LawDrawings | None
    without: str


@dataclass(frozen=True, slots=True)
class LawOfTokens:
    """The arms that the check `law` judged."""

    arms: tuple[ArmLaw, ...]


def read(source: ReportSource) -> LawOfTokens | Nothing:
    """The law of a run's arms."""
    judged = [check for check in source.results.checks if check.check == CHECK]
    ran = [check for check in judged if check.verdict is not Verdict.NOT_RUN]
    if ran:
        return LawOfTokens(tuple(_arm(source, check, len(ran)) for check in ran))
    if judged:
        return Nothing(f"The check law ran on no arm: {judged[0].summary.rstrip('.')}.")
    return Nothing("The suite does not ask for the check law; only sampled arms have a law to test.")


def _arm(source: ReportSource, check: StoredCheck, arms: int) -> ArmLaw:
    drawings: LawDrawings | None = None
    without = "This page draws nothing, because reading the record takes seconds; audit report does."
    if not source.brief:
        try:
            drawings = _drawings(source, check.arm, arms)
            without = "The record of this arm has no rows that can be drawn."
        except CannotDecide as error:
            without = f"The record of this arm cannot be read: {error}."
    details = check.details
    return ArmLaw(check, details.get("alternatives") or (), details.get("components") or (), drawings, without)


def _drawings(source: ReportSource, name: str, arms: int) -> LawDrawings | None:
    arm = source.store.load_arm(source.run, name).keeping()
    if not len(arm.requests) or unreadable(arm, cells=True) is not None:
        return None
    chosen = first_requests(arm.requests, arms)
    tabulated = tuple(request_by_request(chosen, np.random.default_rng(seed_of(chosen))))
    u = np.concatenate([one.table.rank_pit for one in tabulated])
    u = u[~np.isnan(u)]
    if not len(u):
        return None
    of_tokens = next(stored.counts.output for stored in source.results.run.arms if stored.name == name)
    return LawDrawings(
        sum(len(one.tokens) for one in chosen), of_tokens, _histogram(name, u), _process(name, tabulated)
    )


def first_requests(requests: Sequence[RequestRecord], arms: int) -> list[RequestRecord]:
    """The first requests of one of `arms` arms, until its part of `TOKENS` and of `NUMBERS` is read."""
    chosen: list[RequestRecord] = []
    tokens = 0
    for request in requests:
        header = request.trace.header
        most = NUMBERS // header.vocabulary if header.level is RecordLevel.FULL else TOKENS
        if chosen and tokens >= min(TOKENS, most) // arms:
            break
        chosen.append(request)
        tokens += len(request.tokens)
    return chosen


def _histogram(name: str, u: Floats) -> Chart:
    counts = np.histogram(u, bins=BINS, range=(0.0, 1.0))[0]
    n = len(u)
    band = count_range(n, 1.0 / BINS)
    width = 1.0 / BINS
    rows = tuple(
        (round(place * width, 4), round((place + 1) * width, 4), int(count), n / BINS)
        for place, count in enumerate(counts)
    )
    return Chart(
        title=f"Transforms of {name}, by rank of p",
        description=(
            f"{n} tokens as uniform numbers; the histogram is flat if tokens follow p. The line is the expected count, "
            f"and a bar then lies between {band.low:.0f} and {band.high:.0f} with a probability of 99 %."
        ),
        columns=("from", "to", "tokens", "expected"),
        fields=("begin", "end", "tokens", "expected"),
        rows=rows,
        spec=_layered(
            {
                "mark": {"type": "rect", "stroke": "var(--paper)"},
                "encoding": {
                    "x": {"field": "begin", "type": "quantitative", "title": "transform", "scale": {"domain": [0, 1]}},
                    "x2": {"field": "end"},
                    "y": {"field": "tokens", "type": "quantitative", "title": "tokens"},
                    "y2": {"datum": 0},
                },
            },
            {"y": {"field": "expected", "type": "quantitative", "aggregate": "max"}},
        ),
    )


def _layered(marks: Mapping[str, Any], rule: Mapping[str, Any]) -> dict[str, Any]:
    """A chart with a dashed line at the place that `rule` encodes."""
    dashed = {"mark": {"type": "rule", "strokeDash": [4, 3], "color": "var(--ink)"}, "encoding": rule}
    return {"width": 520, "height": 130, "layer": [marks, dashed]}


def _process(name: str, tabulated: Sequence[LawEvidence]) -> Chart | None:
    states = [one.process for one in tabulated if one.process.n]
    if not states:
        return None
    rows = ((0, 0.0), *((state.n, round(state.log_final, 6)) for state in states))
    line = math.log(1.0 / states[-1].alpha)
    return Chart(
        title=f"Evidence for named faults in {name}, over tokens",
        description=(
            "The logarithm of the e-process of the check: the average likelihood ratio of all named faults against the "
            f"target's law, after each request. It seldom rises where tokens follow p: above the dashed line, at "
            f"{line:.3g}, with a probability of at most {states[-1].alpha:g}, at whatever token one looks."
        ),
        columns=("tokens", "log e-value"),
        fields=("tokens", "evidence"),
        rows=tuple(_thinned(rows)),
        spec=_layered(
            {
                "mark": {"type": "line", "interpolate": "linear"},
                "encoding": {
                    "x": {"field": "tokens", "type": "quantitative", "title": "tokens"},
                    "y": {"field": "evidence", "type": "quantitative", "title": "log e-value"},
                },
            },
            {"y": {"datum": line}},
        ),
    )


def _thinned(rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    step = max(1, math.ceil(len(rows) / POINTS))
    yield from rows[:-1:step]
    yield rows[-1]


SECTION: Final = ReportSection(
    "law",
    "Law",
    "Were the emitted tokens drawn from the target's distribution, and if not, which fault fits best?",
    read,
)
