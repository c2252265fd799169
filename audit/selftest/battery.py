"""Every registered check with its default parameters, in the registry's order.

Every new check joins the battery. Two parameters have no meaningful default: the pair's recorded acceptance rate and
its tokens per forward. A trusted run supplies them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.acceptance import tokens_per_forward
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import CheckResult, Verdict

DRIFT: Final = "acceptance_drift"
PERFORMANCE: Final = "performance"
OF_OTHER_ENGINES: Final = frozenset({"same_seed"})
"""Checks that judge no arm of the built-in engine, whose noise is known: `coupled_equality` judges the same claim."""
LEAST_PROMPTS: Final = 5
"""Minimum number of prompts of a domain to record its rate."""
BY_FELLOWS: Final = frozenset({"acceptance_outliers"})
"""Checks that compare requests with one another: planted faults break all requests of an arm alike."""
Settings = Mapping[str, Mapping[str, Any]]
"""Non-default parameters by check."""


def names(level: Level = Level.L4) -> tuple[str, ...]:
    """The checks for which evidence of this level suffices.

    Without those of other engines, of their statements, and of requests that differ from their fellows.
    """
    every = {name: checks.load(name) for name in checks.names() if name not in OF_OTHER_ENGINES | BY_FELLOWS}
    return tuple(name for name, check in every.items() if check.needs <= level and not check.external)


def recorded(trusted: Evidence) -> Settings:
    """The settings that a user would record after a trusted run.

    The acceptance overall and per domain, and the least tokens per forward.
    """
    rates = evaluate(checks.load(DRIFT), trusted, {}).details.get("rates", {})
    rates_by_domain = {name: entry for name, entry in map(_rate_entry, rates.items()) if entry}
    least = tokens_per_forward(trusted.candidate.requests, 0.98).low
    asked = {PERFORMANCE: {"min_tokens_per_forward": least}} if math.isfinite(least) and least > 0 else {}
    return ({DRIFT: {"expected": rates_by_domain}} if "all" in rates_by_domain else {}) | asked


def _rate_entry(rate: tuple[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, float]]:
    """Return an empty entry for too few prompts, and for context ranges, which reuse the same prompts."""
    name, result = rate
    least = 2 if name == "all" else LEAST_PROMPTS
    if name.startswith("context") or result["prompts"] < least or result["low"] is None or result["high"] is None:
        return name, {}
    ends = {key: min(1.0, max(0.0, result[key])) for key in ("rate", "low", "high")}
    return name, ends | {"confidence": 0.98}


def results(evidence: Evidence, listed: Iterable[str], settings: Settings) -> dict[str, CheckResult]:
    """The result of each check with something to test."""
    outcome = {name: evaluate(checks.load(name), evidence, settings.get(name, {})) for name in listed}
    return {name: result for name, result in outcome.items() if result.verdict is not Verdict.NOT_RUN}


def faulted(mapping: Mapping[str, CheckResult]) -> tuple[str, ...]:
    """The checks that report a fault."""
    return tuple(name for name, item in mapping.items() if item.verdict is Verdict.FAULT)


def p_values(name: str, result: CheckResult) -> dict[str, float]:
    """Every p-value of a result by test name: the check's own and those of its parts.

    Checks that measure time have none here, because theirs differ in every run.
    """
    if checks.load(name).claim == "cost":
        return {}
    own = {} if result.p_value is None else {name: result.p_value}
    return own | {f"{name}: {part}": p for part, p in _parts(result.details)}


def _parts(details: Any) -> Iterator[tuple[str, float]]:
    """Entries with a name and an unadjusted p at any depth."""
    if isinstance(details, Mapping):
        if isinstance(details.get("name"), str) and isinstance(details.get("p"), float):
            yield _title(details), float(details["p"])
        for value in details.values():
            yield from _parts(value)
    elif isinstance(details, list | tuple):
        for value in details:
            yield from _parts(value)


def _title(entry: Mapping[str, Any]) -> str:
    # a sequential test's name has the leading alternative, which varies
    name = str(entry["name"]).split(", led by", 1)[0]
    return f"{name} ({entry['stratum']})" if "stratum" in entry else name


def uncaught(caught: Iterable[str]) -> tuple[str, ...]:
    """Checks that caught nothing: a negative control that did not fire."""
    fired = frozenset(caught)
    return tuple(name for name in names() if name not in fired)
