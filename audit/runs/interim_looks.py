"""Looking at a run while it grows: the stop rule, what a look may spend, and what the looks found.

A test whose size is fixed beforehand may be read once. A run that is read after
every round therefore gives look k the share 6 / (pi^2 k^2) of every error
probability; the shares add up to 1 however many looks there are, so the chance
of any false alarm, or of any bound that fails, stays at the check's own level
(union bound). Checks that are valid whenever one looks are left as they are.
Knows nothing about how rounds are run or stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from audit.checks.interface import Check, Params
from audit.store import StoredEvent, StoredRun

UNTIL: Final = "decided"
SCHEDULE: Final = "6 / (pi^2 k^2)"
STOP_RULE: Final = "stop_rule"
"""The key of the stop rule in an arm's specification."""
PREFIX: Final = "look "
"""How the detail of a run's event begins that tells a look; JSON follows."""


@dataclass(frozen=True, slots=True)
class RunStopRule:
    """Stop as soon as every check is decided, and begin no round that could pass `max_tokens` in all arms."""

    max_tokens: int
    until: str = UNTIL
    schedule: str = SCHEDULE

    def document(self) -> dict[str, Any]:
        """As it is recorded."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class InterimLook:
    """One reading of the evidence, counted from 1."""

    number: int

    @property
    def share(self) -> float:
        """Of every error probability."""
        return share(self.number)


@dataclass(frozen=True, slots=True)
class InterimResult:
    """What a look found. `stopped` is why the run ends there; None if it goes on."""

    look: int
    share: float
    """Of every error probability, at this look."""
    spent: float
    """By all looks so far."""
    tokens: int
    """Emitted in all arms by then."""
    undecided: tuple[str, ...]
    """Candidates that have neither passed nor failed."""
    exit_code: int
    stopped: str | None

    def detail(self) -> str:
        """As a run's event."""
        return PREFIX + json.dumps(asdict(self))


def share(number: int) -> float:
    """What look `number` (from 1) may spend of an error probability."""
    return 6.0 / (math.pi * number) ** 2


def spent(number: int) -> float:
    """What looks 1 to `number` spend together; below 1."""
    return math.fsum(share(each) for each in range(1, number + 1))


def stop_rule(record: StoredRun) -> RunStopRule | None:
    """The rule that a run was begun with, or None."""
    found = next((arm.spec[STOP_RULE] for arm in record.arms if STOP_RULE in arm.spec), None)
    return None if found is None else RunStopRule(**found)


def interim_results(events: Iterable[StoredEvent]) -> tuple[InterimResult, ...]:
    """The looks of a run so far, from its events."""
    told = (json.loads(event.detail.removeprefix(PREFIX)) for event in events if event.detail.startswith(PREFIX + "{"))
    return tuple(InterimResult(**{**each, "undecided": tuple(each["undecided"])}) for each in told)


def at_interim_look(check: Check, overrides: Params, look: InterimLook | None) -> Params:
    """A suite's overrides with `alpha` and `confidence` as they are at a look."""
    if look is None or check.anytime:
        return overrides
    params: Mapping[str, Any] = {**check.defaults, **overrides}
    levels = {}
    if "alpha" in params:
        levels["alpha"] = float(params["alpha"]) * look.share
    if "confidence" in params:
        levels["confidence"] = 1.0 - (1.0 - float(params["confidence"])) * look.share
    return {**overrides, **levels}


def interim_look_lines(events: Iterable[StoredEvent]) -> list[str]:
    """What a reader wants to know about a run that stops by itself; nothing of other runs."""
    every = interim_results(events)
    if not every or every[-1].stopped is None:
        return []
    last = every[-1]
    word = "decided" if last.exit_code in (0, 1) else "not decided"
    looks = "1 look" if last.look == 1 else f"{last.look} looks"
    return [f"{word} after {last.tokens} tokens in {looks}, {last.spent:.3g} of alpha spent: {last.stopped}"]
