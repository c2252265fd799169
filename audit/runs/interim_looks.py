"""Interim looks at a growing run: the stop rule, the error probability of each look, and the results.

A test whose size is fixed beforehand may be read once. A run that is read after
every round therefore gives look k the share 6 / (pi^2 k^2) of every error
probability. The shares sum to 1 for any number of looks, so the chance
of any false alarm, or of any bound that fails, stays at the check's own level
(union bound). Anytime-valid checks are left unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from audit.store import StoredEvent, StoredRun

if TYPE_CHECKING:
    # `audit show` imports this module too, and no check
    from audit.checks.base.interface import Check
    from audit.evidence.verdicts import Params

UNTIL: Final = "decided"
SCHEDULE: Final = "6 / (pi^2 k^2)"
STOP_RULE: Final = "stop_rule"
"""The key of the stop rule in an arm's specification."""
PREFIX: Final = "look "
"""Prefix of an interim look in the detail of a run's event; JSON follows."""


@dataclass(frozen=True, slots=True)
class RunStopRule:
    """Stop as soon as every check is decided, and begin no round that could exceed `max_tokens` over all arms."""

    max_tokens: int
    until: str = UNTIL
    schedule: str = SCHEDULE

    def document(self) -> dict[str, Any]:
        """The rule as recorded."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class InterimLook:
    """One reading of the evidence, counted from 1."""

    number: int

    @property
    def share(self) -> float:
        """Share of every error probability."""
        return share(self.number)


@dataclass(frozen=True, slots=True)
class InterimResult:
    """Result of a look. `stopped` gives the reason to end the run; None if it continues."""

    look: int
    share: float
    """Share of every error probability at this look."""
    spent: float
    """Share spent by all looks so far."""
    tokens: int
    """Tokens emitted in all arms so far."""
    undecided: tuple[str, ...]
    """Candidates that have neither passed nor failed."""
    exit_code: int
    stopped: str | None
    repetitions: int
    """Repetitions of the suite's cases so far; the next round has as many again, if they fit."""
    open: tuple[str, ...]
    """Undecided candidates that more evidence may decide."""

    def detail(self) -> str:
        """The result as the detail of a run's event."""
        return PREFIX + json.dumps(asdict(self))


def share(number: int) -> float:
    """The share of an error probability for look `number` (from 1)."""
    return 6.0 / (math.pi * number) ** 2


def spent(number: int) -> float:
    """The total share of looks 1 to `number`; below 1."""
    return math.fsum(share(index) for index in range(1, number + 1))


def stop_rule(record: StoredRun) -> RunStopRule | None:
    """The run's stop rule, or None."""
    result = next((arm.spec[STOP_RULE] for arm in record.arms if STOP_RULE in arm.spec), None)
    return None if result is None else RunStopRule(**result)


def interim_results(events: Iterable[StoredEvent]) -> tuple[InterimResult, ...]:
    """The looks of a run so far, from its events."""
    looks = (json.loads(event.detail.removeprefix(PREFIX)) for event in events if event.detail.startswith(PREFIX + "{"))
    return tuple(map(_interim_result, looks))


def _interim_result(document: Mapping[str, Any]) -> InterimResult:
    """The recorded result; in records without `repetitions` every round had one."""
    document = {"repetitions": document["look"], "open": document["undecided"], **document}
    names = {key: tuple(document[key]) for key in ("undecided", "open")}
    return InterimResult(**{**document, **names})


def at_interim_look(check: Check, overrides: Params, look: InterimLook | None) -> Params:
    """A suite's overrides with `alpha` and `confidence` adjusted for a look."""
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
    """Summary lines of a run with a stop rule; empty for other runs."""
    every = interim_results(events)
    if not every or every[-1].stopped is None:
        return []
    last = every[-1]
    word = "decided" if last.exit_code in (0, 1) else "not decided"
    looks = "1 look" if last.look == 1 else f"{last.look} looks"
    return [f"{word} after {last.tokens} tokens in {looks}, {last.spent:.3g} of alpha spent: {last.stopped}"]
