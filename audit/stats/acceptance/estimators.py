"""The estimators of acceptance that tools report, each with its definition: one run has several, and they differ.

a, d, s are a request's accepted tokens, drafted tokens and steps with a draft; sums are over requests. Tokens, steps
and requests are different populations: a few long requests that accept more than the others raise what is weighted by
tokens or steps and leave the mean over requests where it is. AIPerf's names are those of its run-level metrics; it
prints its rates in per cent.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import fsum
from typing import Final


class Estimator(StrEnum):
    """Name of an estimator, as pages and JSON have it."""

    TOKEN_RATE = "token_weighted_rate"
    REQUEST_RATE = "request_weighted_rate"
    TOKEN_LENGTH = "token_weighted_length"
    REQUEST_LENGTH = "request_weighted_length"
    COUNTER_RATE = "counter_rate"
    COUNTER_LENGTH = "counter_length"


@dataclass(frozen=True, slots=True)
class DraftTotals:
    """Drafts of one request, or of all that a server's counters count.

    steps: those with a draft; None if nobody counted them. emitted: tokens of the answer; None if unknown.

    Raises:
        ValueError: the numbers contradict one another.
    """

    steps: int | None
    drafted: int
    accepted: int
    emitted: int | None = None

    def __post_init__(self) -> None:
        """Refuse accepted tokens above the drafted or emitted ones."""
        text = contradiction(self.steps, self.drafted, self.accepted, self.emitted)
        if text is not None:
            raise ValueError(text)


def contradiction(steps: int | None, drafted: int, accepted: int, emitted: int | None = None) -> str | None:
    """Say how the counts contradict one another; None if they do not."""
    if min(drafted, accepted, steps or 0, emitted or 0) < 0:
        return "a count is negative"
    if accepted > drafted:
        return f"{accepted} accepted tokens are more than the {drafted} drafted ones"
    if emitted is not None and accepted > emitted:
        return f"{accepted} accepted tokens are more than the {emitted} emitted ones"
    if steps is not None and steps > drafted:
        return f"{steps} steps with a draft are more than the {drafted} drafted tokens"
    return None


@dataclass(frozen=True, slots=True)
class DraftSums:
    """Sums over requests with a draft, or the growth of a server's counters as one request.

    steps: those with a draft; None if nobody counted them for one of the requests. rates: sum of a / d. stepped:
    requests whose steps are counted and above 0; lengths: the sum of 1 + a / s over them.
    """

    requests: int
    steps: int | None
    drafted: int
    accepted: int
    rates: float
    stepped: int
    lengths: float


def draft_sums(requests: Iterable[DraftTotals]) -> DraftSums:
    """The sums over those of the requests that have a draft."""
    drafting = [one for one in requests if one.drafted]
    lengths = [1 + one.accepted / one.steps for one in drafting if one.steps]
    return DraftSums(
        requests=len(drafting),
        steps=None if any(one.steps is None for one in drafting) else sum(one.steps or 0 for one in drafting),
        drafted=sum(one.drafted for one in drafting),
        accepted=sum(one.accepted for one in drafting),
        rates=fsum(one.accepted / one.drafted for one in drafting),
        stepped=len(lengths),
        lengths=fsum(lengths),
    )


@dataclass(frozen=True, slots=True)
class EstimatorDefinition:
    """Facts of an estimator.

    unit: `ratio` of drafted tokens, or `tokens per step`. weighs: the population in which every member counts the same.
    aiperf: AIPerf's name, None if it has none. counters: it is of a server's counters, not of requests.
    """

    estimator: Estimator
    formula: str
    unit: str
    weighs: str
    aiperf: str | None
    value: Callable[[DraftSums], float | None]
    counters: bool = False


def _rate(sums: DraftSums) -> float | None:
    return sums.accepted / sums.drafted if sums.drafted else None


def _length(sums: DraftSums) -> float | None:
    return 1 + sums.accepted / sums.steps if sums.steps else None


RATIO: Final = "ratio"
PER_STEP: Final = "tokens per step"
ESTIMATORS: Final = (
    EstimatorDefinition(
        Estimator.TOKEN_RATE,
        "sum a / sum d",
        RATIO,
        "drafted tokens of the requests",
        "spec_decode_overall_draft_acceptance_rate",
        _rate,
    ),
    EstimatorDefinition(
        Estimator.REQUEST_RATE,
        "mean of a / d over requests with a draft",
        RATIO,
        "requests",
        "spec_decode_draft_acceptance_rate",
        lambda sums: sums.rates / sums.requests if sums.requests else None,
    ),
    EstimatorDefinition(
        Estimator.TOKEN_LENGTH,
        "1 + sum a / sum s",
        PER_STEP,
        "steps of the requests that have a draft",
        "spec_decode_token_weighted_acceptance_length",
        _length,
    ),
    EstimatorDefinition(
        Estimator.REQUEST_LENGTH,
        "mean of 1 + a / s over requests with a draft",
        PER_STEP,
        "requests",
        "spec_decode_acceptance_length",
        lambda sums: sums.lengths / sums.stepped if sums.stepped and sums.steps is not None else None,
    ),
    EstimatorDefinition(
        Estimator.COUNTER_RATE,
        "growth of accepted / growth of drafted",
        RATIO,
        "drafted tokens of all clients of the server",
        None,
        _rate,
        counters=True,
    ),
    EstimatorDefinition(
        Estimator.COUNTER_LENGTH,
        "1 + growth of accepted / growth of drafts",
        PER_STEP,
        "steps with a draft of all clients of the server",
        None,
        _length,
        counters=True,
    ),
)
"""Every estimator, in the order of pages."""


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """The value of an estimator; `requests` with a draft that it is over, None for counters."""

    estimator: Estimator
    value: float
    unit: str
    weighs: str
    requests: int | None
    aiperf: str | None


def estimates(requests: DraftSums | None, counters: DraftTotals | None = None) -> tuple[AcceptanceEstimate, ...]:
    """The estimators that these counts allow.

    `requests` are sums over the requests, None if nobody counted some of them; `counters` the growth of a server's.
    """
    grown = None if counters is None else draft_sums([counters])
    result = []
    for one in ESTIMATORS:
        sums = grown if one.counters else requests
        value = None if sums is None else one.value(sums)
        if sums is not None and value is not None:
            over = None if one.counters else sums.requests
            result.append(AcceptanceEstimate(one.estimator, value, one.unit, one.weighs, over, one.aiperf))
    return tuple(result)
