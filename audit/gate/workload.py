"""The workload of an arm, counted from the record and not from the suite.

A request counts as greedy at temperature 0. It counts as sampled if its parameters leave a choice: a temperature of
1e-6 or a `top_k` of 1 is neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from audit.evidence.records import ArmRecord, RequestRecord
from engine.core.types import SamplingParams

SAMPLED_FROM: Final = 0.1
"""Smallest temperature at which a request counts as sampled."""
LEAST_TOP_P: Final = 0.05
MOST_MIN_P: Final = 0.9
OPEN_BELOW: Final = 0.95
"""A sampled token with p below this was a choice."""


@dataclass(frozen=True, slots=True)
class ArmWorkload:
    """Counts of one arm's answered requests.

    temperatures: requests by temperature, of those that count as sampled.
    longest: most tokens of a prompt and its answer together.
    choices: tokens of sampled requests that p left open; None if the record has no p.
    """

    requests: int
    tokens: int
    prompts: int
    domains: frozenset[str]
    longest: int
    greedy: int
    temperatures: dict[float, int]
    choices: int | None


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: tuple[int, ...]
    domain: str
    tokens: int
    sampling: SamplingParams
    choices: int | None


def is_sampled(sampling: SamplingParams) -> bool:
    """True if the parameters leave a choice between tokens."""
    return (
        sampling.temperature >= SAMPLED_FROM
        and sampling.top_k != 1
        and sampling.top_p >= LEAST_TOP_P
        and sampling.min_p <= MOST_MIN_P
    )


def workload_of(record: ArmRecord) -> ArmWorkload:
    """Count an arm's requests; reads every trace once."""
    return _counted([_read(request) for request in record.requests])


def _read(request: RequestRecord) -> _Request:
    header = request.trace.header
    p = request.trace.p
    choices = int((p < OPEN_BELOW).sum()) if is_sampled(header.sampling) and p.size else None
    return _Request(tuple(header.prompt), request.domain, len(request.tokens), header.sampling, choices)


def _counted(requests: Iterable[_Request]) -> ArmWorkload:
    listed = list(requests)
    sampled = [request for request in listed if is_sampled(request.sampling)]
    shown = [request.choices for request in sampled if request.choices is not None]
    return ArmWorkload(
        requests=len(listed),
        tokens=sum(request.tokens for request in listed),
        prompts=len({request.prompt for request in listed}),
        domains=frozenset(request.domain for request in listed),
        longest=max((len(request.prompt) + request.tokens for request in listed), default=0),
        greedy=sum(request.sampling.greedy for request in listed),
        temperatures=dict(Counter(request.sampling.temperature for request in sampled)),
        choices=sum(shown) if shown else None,
    )
