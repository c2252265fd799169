"""The facts of a request's batch, for the header of its record: where and when it ran, and beside whom.

Neighbours that are not recorded leave no other trace, so the loop itself says which rounds held unlike requests.
"""

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import count, takewhile
from typing import Any, Protocol

from engine.core.types import SamplingParams


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """The place that a request takes in a run of the loop: step k of the request is the run's round `round + k`.

    `call` is the name of the run's first request. Names are unique within an arm, so requests of an arm were decoded
    in one batch exactly if they have the same `call`.
    """

    call: str
    row: int
    round: int

    def facts(self) -> dict[str, Any]:
        """The place as facts of a trace's header."""
        return asdict(self)


class ActiveRow(Protocol):
    """Known facts of an active row: its place, and the number of its parameters."""

    @property
    def place(self) -> BatchPlace:
        """The place."""

    @property
    def kind(self) -> int:
        """See `BatchRounds.kind`."""


class BatchRounds:
    """The rounds of one run of the loop in which active rows had different sampling parameters, or that began without
    a request which was withdrawn.

    In an unlike round every row has an unlike row beside it. Seeds and lengths are no difference.
    """

    def __init__(self) -> None:
        self._withdrawals: list[int] = []
        self._kinds: dict[SamplingParams, int] = {}
        self._numbers = count()
        self._ranges: list[range] = []

    def kind(self, sampling: SamplingParams) -> int:
        """The number of these parameters, equal for parameters that are active at the same time."""
        plain = replace(sampling, seed=0, max_new_tokens=1)
        if plain not in self._kinds:
            self._kinds[plain] = next(self._numbers)
        return self._kinds[plain]

    def note(self, number: int, kinds: Iterable[int]) -> None:
        """Note the kinds that are active in a round; rounds come in order."""
        if len(set(kinds)) < 2:
            return
        last = self._ranges[-1] if self._ranges else range(0)
        if last and last.stop == number:
            self._ranges[-1] = range(last.start, number + 1)
        else:
            self._ranges.append(range(number, number + 1))

    def withdraw(self, admitted: int, number: int) -> None:
        """Note that a request left before a round; one that was in no step left nothing."""
        if admitted < number:
            self._withdrawals.append(number)

    def forget(self, active: Iterable[ActiveRow]) -> None:
        """Forget what no active row will ask for, so that a run without an end keeps little."""
        rows = list(active)
        first = min((row.place.round for row in rows), default=sys.maxsize)
        self._ranges = [stretch for stretch in self._ranges if stretch.stop > first]
        self._withdrawals = [number for number in self._withdrawals if number >= first]
        kinds = {row.kind for row in rows}
        self._kinds = {sampling: number for sampling, number in self._kinds.items() if number in kinds}

    def facts(self, first: int) -> dict[str, Any]:
        """Of a request that was admitted in round `first`: the first and last round of every unlike stretch, in order,
        and the rounds before which another request was withdrawn, if any.
        """
        late = list(takewhile(lambda item: item.stop > first, reversed(self._ranges)))
        left = [number for number in self._withdrawals if number >= first]
        unlike = [[max(item.start, first), item.stop - 1] for item in reversed(late)]
        return {"unlike": unlike, **({"withdrawals": left} if left else {})}
