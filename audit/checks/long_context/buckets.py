"""Context lengths in buckets, each twice as long as the one before it, up to the target's maximum."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.records import ArmRecord, RequestRecord

FACT: Final = "context"
"""Key of the target's maximum in an engine's effective configuration."""
FIRST: Final = 64
"""End of the first bucket."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Contexts of `low` to `high - 1` tokens before the token that is judged."""

    low: int
    high: int

    @property
    def name(self) -> str:
        """The lengths, both ends included."""
        return f"{self.low}-{self.high - 1}"

    def has(self, contexts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] true where a context is in the bucket."""
        return np.asarray((contexts >= self.low) & (contexts < self.high))


def buckets_up_to(maximum: int) -> tuple[Bucket, ...]:
    """All buckets; the last one ends at `maximum`."""
    borders = [0, FIRST]
    while borders[-1] < maximum:
        borders.append(2 * borders[-1])
    borders[-1] = maximum
    return tuple(Bucket(low, high) for low, high in pairwise(borders))


def contexts_of(request: RequestRecord) -> NDArray[np.int64]:
    """[E] tokens before each emitted token, prompt included."""
    return len(request.trace.header.prompt) + np.arange(len(request.tokens))


def longest(requests: Iterable[RequestRecord]) -> int:
    """The longest context with its token, prompt included."""
    return max((len(request.trace.header.prompt) + len(request.tokens) for request in requests), default=0)


def maximum_of(arm: ArmRecord, given: int) -> int | None:
    """The target's maximum: the suite's word, else the engine's; None if neither says it."""
    stated = arm.effective.facts.get(FACT)
    return given or (stated if isinstance(stated, int) else None)
