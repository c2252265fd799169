"""Every registered check with its default parameters, in the registry's order.

A check that is added is in the battery. Two parameters have no default that means
anything: how often drafts were accepted when the pair was recorded, and how many
tokens each forward gave; they are taken from a run that one trusts. Knows nothing about arms and faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit import checks
from audit.checks.interface import evaluate
from audit.checks.performance import tokens_per_forward
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import CheckResult, Verdict

DRIFT: Final = "acceptance_drift"
PERFORMANCE: Final = "performance"
LEAST_PROMPTS: Final = 5
"""Of a domain whose rate is worth recording."""
Settings = Mapping[str, Mapping[str, Any]]
"""Parameters by check, where they are not the defaults."""


@dataclass(frozen=True, slots=True)
class BatteryResult:
    """What the battery said of one arm: checks that looked, and those among them that called it a fault."""

    looked: tuple[str, ...]
    faults: tuple[str, ...]


def names(level: Level = Level.L4) -> tuple[str, ...]:
    """The checks that evidence of this level suffices for; not those of what other engines say of themselves."""
    every = {name: checks.load(name) for name in checks.names()}
    return tuple(name for name, check in every.items() if check.needs <= level and not check.external)


def recorded(trusted: Evidence) -> Settings:
    """What a user would write into the suite after a run that they trust.

    Its acceptance and that of its domains, and the least that it emitted per forward.
    """
    rates = evaluate(checks.load(DRIFT), trusted, {}).details.get("rates", {})
    told = {name: entry for name, entry in map(_rate_entry, rates.items()) if entry}
    least = tokens_per_forward(trusted.candidate.requests, 0.98).low
    asked = {PERFORMANCE: {"min_tokens_per_forward": least}} if math.isfinite(least) and least > 0 else {}
    return ({DRIFT: {"expected": told}} if "all" in told else {}) | asked


def _rate_entry(rate: tuple[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, float]]:
    """Empty for a rate of too few prompts, and for ranges of context, which come from the same prompts again."""
    name, found = rate
    least = 2 if name == "all" else LEAST_PROMPTS
    if name.startswith("context") or found["prompts"] < least or found["low"] is None or found["high"] is None:
        return name, {}
    ends = {key: min(1.0, max(0.0, found[key])) for key in ("rate", "low", "high")}
    return name, ends | {"confidence": 0.98}


def results(evidence: Evidence, listed: Iterable[str], settings: Settings) -> dict[str, CheckResult]:
    """The result of each of the checks that had something to look at."""
    found = {name: evaluate(checks.load(name), evidence, settings.get(name, {})) for name in listed}
    return {name: result for name, result in found.items() if result.verdict is not Verdict.NOT_RUN}


def judged(found: Mapping[str, CheckResult]) -> BatteryResult:
    """The verdicts alone."""
    return BatteryResult(tuple(found), tuple(name for name, each in found.items() if each.verdict is Verdict.FAULT))


def p_values(name: str, result: CheckResult) -> dict[str, float]:
    """Every p-value of a result by the name of its test: the check's own, and those of its parts.

    A check that measures time has none here: it would give others in every run.
    """
    if checks.load(name).claim == "cost":
        return {}
    own = {} if result.p_value is None else {name: result.p_value}
    return own | {f"{name}: {part}": p for part, p in _parts(result.details)}


def _parts(details: Any) -> Iterator[tuple[str, float]]:
    """Entries with a name and an unadjusted p, however deep."""
    if isinstance(details, Mapping):
        if isinstance(details.get("name"), str) and isinstance(details.get("p"), float):
            yield _title(details), float(details["p"])
        for value in details.values():
            yield from _parts(value)
    elif isinstance(details, list | tuple):
        for value in details:
            yield from _parts(value)


def _title(entry: Mapping[str, Any]) -> str:
    # a sequential test is named after the alternative that happens to lead
    name = str(entry["name"]).split(", led by", 1)[0]
    return f"{name} ({entry['stratum']})" if "stratum" in entry else name


def uncaught(caught: Iterable[str]) -> tuple[str, ...]:
    """Checks without a single catch: a negative control that did not fire."""
    fired = frozenset(caught)
    return tuple(name for name in names() if name not in fired)
