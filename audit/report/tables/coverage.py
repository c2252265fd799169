"""The coverage tables of a run and its one line per arm, as rows."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.expected import ANYWHERE, CORE, ENDS, TOGETHER, UNPROMISED
from audit.store import StoredArm, StoredCoverage

SITUATIONS: Final = ("arm", "situation", "occurred", "floor", "examined least by", "examined", "wrong at most (95 %)")
BY_CHECK: Final = ("arm", "check", "situation", "occurred", "examined", "floor")
IN_WORDS: Final = {
    "recovered_token": "rejections",
    "bonus_token": "drafts kept whole",
    "row_reused": "rows reused",
    "mixed_parameters": "steps beside other parameters",
}
"""Situations of the line per arm."""
GENERAL: Final = (*ANYWHERE, *ENDS, *TOGETHER, *UNPROMISED)
"""Situations that any arm could meet, whatever its parameters."""
MISSED: Final = 0.05
"""Probability of no wrong occurrence among the examined ones at the printed bound."""


def zero_hit_bound(examined: int) -> float:
    """The largest share of wrong occurrences that `examined` occurrences without a wrong one leave possible.

    The exact 95 % bound, about 3 / n ("rule of three"; Hanley and Lippman-Hand 1983); 1 without any.
    """
    return 1.0 - MISSED ** (1.0 / examined) if examined else 1.0


def in_order(coverage: Iterable[StoredCoverage], *, everything: bool) -> list[StoredCoverage]:
    """Arms as they come, situations in the catalogue's order; without `everything` only those that occurred or have
    a floor.
    """
    kept = [item for item in coverage if everything or item.occurred or item.least is not None]
    places = {name: place for place, name in enumerate(CATALOGUE)}
    arms = {arm: place for place, arm in enumerate(dict.fromkeys(item.arm for item in kept))}
    return sorted(kept, key=lambda item: (arms[item.arm], places.get(item.situation, len(places))))


def situation_rows(coverage: Sequence[StoredCoverage]) -> list[tuple[Any, ...]]:
    """One row per arm and situation, with the check that examined it least."""
    rows = []
    for arm, situation in dict.fromkeys((item.arm, item.situation) for item in coverage):
        own = [item for item in coverage if (item.arm, item.situation) == (arm, situation)]
        least = min(own, key=lambda item: item.examined)
        bound = zero_hit_bound(least.examined) if least.examined else None
        rows.append((arm, situation, least.occurred, least.least, least.check, least.examined, bound))
    return rows


def check_rows(coverage: Iterable[StoredCoverage]) -> list[tuple[Any, ...]]:
    """One row per arm, check and situation."""
    return [(item.arm, item.check, item.situation, item.occurred, item.examined, item.least) for item in coverage]


def coverage_lines(arms: Iterable[StoredArm], coverage: Sequence[StoredCoverage]) -> list[str]:
    """One line per arm with a check of its drafts: the main situations, what a check examined too rarely, what never
    occurred, of which a pass says nothing, and the requests that were added for it.
    """
    drafting = {item.arm for item in coverage if item.situation in CORE}
    return [_line(arm, coverage) for arm in arms if arm.name in drafting]


def _line(arm: StoredArm, coverage: Sequence[StoredCoverage]) -> str:
    own = [item for item in coverage if item.arm == arm.name]
    # checks that were decided at an earlier look counted fewer requests
    occurred = {item.situation: item.occurred for item in sorted(own, key=lambda item: item.occurred)}
    shown = {name: words for name, words in IN_WORDS.items() if name in CORE or occurred.get(name)}
    counts = ", ".join(f"{occurred.get(name, 0)} {words}" for name, words in shown.items())
    short = sorted({item.situation for item in own if item.short})
    missing = f"; too few examined: {', '.join(short)}" if short else ""
    floored = {item.situation for item in own if item.least}
    never = [name for name in CATALOGUE if name in GENERAL and occurred.get(name) == 0 and name not in floored]
    unmet = f"; not met: {', '.join(never)}" if never else ""
    added = f"; {arm.counts.directed} directed requests beside {arm.counts.requests}" if arm.counts.directed else ""
    return f"coverage of {arm.name}: {counts}{missing}{unmet}{added}"
