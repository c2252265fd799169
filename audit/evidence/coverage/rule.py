"""How often a check must examine the situations of its claim before it may certify an arm."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.count import ArmCoverage, steps_known
from audit.evidence.coverage.expected import ONCE, PARTS, often, once
from audit.evidence.coverage.groups import Group
from audit.evidence.records import ArmRecord
from audit.evidence.verdicts import SHORT_OF, CheckResult, Verdict

LEAST = 10
"""Default number of examined occurrences: with none wrong, at most 26 % are, with 95 % confidence."""
NOTHING_ACCEPTED = "no drafted token was accepted, so the run shows nothing about speculation; use a better draft"


@dataclass(frozen=True, slots=True)
class CoverageRule:
    """A suite's demand of each expected situation that is not in `waive`, and of each one in `demand`.

    least: examined occurrences of a situation that every such run meets often, and of a demanded one; of the other
        expected ones a single occurrence is enough. 0 asks for none but the demanded ones.
    waive: situations that may stay unexamined, with those that cannot occur without them (`PARTS`).
    demand: situations that the settings do not promise, such as those of prompts.
    directed: the run adds requests that bring about what its own do not (`audit.runs.situations`).
    """

    least: int = LEAST
    waive: tuple[str, ...] = ()
    demand: tuple[str, ...] = ()
    directed: bool = True

    def floor(self, name: str) -> int:
        """Least examined occurrences of a situation that is expected or demanded."""
        if name in self.demand:
            return max(self.least, 1)
        if name in self.waive or any(name in PARTS.get(whole, ()) for whole in self.waive):
            return 0
        return min(self.least, 1) if name in ONCE else self.least


DEFAULT_FLOORS = CoverageRule()


def held_back(
    result: CheckResult, covers: frozenset[Group], examined: Mapping[str, int], floors: Mapping[str, int]
) -> CheckResult:
    """The result, `inconclusive` instead of `certified` if the check examined a covered situation too rarely."""
    if result.verdict is not Verdict.CERTIFIED:
        return result
    short = {
        name: examined[name]
        for name, least in floors.items()
        if CATALOGUE[name].group in covers and examined[name] < least
    }
    if not short:
        return result
    counts = ", ".join(f"{name} {count} of {floors[name]}" for name, count in short.items())
    remedies = "; ".join(dict.fromkeys(CATALOGUE[name].remedy for name in short))
    mend = f"to reach it, {remedies}, or waive it in the suite"
    return _undecided(result, f"examined too rarely: {counts}; {mend}. So far: {result.summary}", short)


def held_back_unaccepted(result: CheckResult, covers: frozenset[Group], coverage: ArmCoverage) -> CheckResult:
    """The result, `inconclusive` instead of `certified` if nothing was accepted and the claim is about speculation."""
    if result.verdict is not Verdict.CERTIFIED or not covers or coverage.accepted or not coverage.occurred:
        return result
    return _undecided(result, f"{NOTHING_ACCEPTED}. So far: {result.summary}", {})


def _undecided(result: CheckResult, summary: str, short: Mapping[str, int]) -> CheckResult:
    details = {**result.details, SHORT_OF: dict(short)}
    return dataclasses.replace(result, verdict=Verdict.INCONCLUSIVE, summary=summary, details=details)


def needed(arm: ArmRecord, coverage: ArmCoverage, rule: CoverageRule) -> Mapping[str, int]:
    """Least examined occurrences by situation in the catalogue's order, without what the record cannot show."""
    if not steps_known(arm):
        return {}
    # directed requests have parameters of their own
    own = arm.keeping()
    wanted = {*often(own), *once(own), *rule.demand}
    floors = {name: rule.floor(name) for name in CATALOGUE if name in wanted and name in coverage.occurred}
    return {name: least for name, least in floors.items() if least}
