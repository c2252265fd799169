"""The arms of a stored run as they were judged: their checks, floors and companions, from the record alone.

An arm that states no checks, in a store that another program wrote, has those with a stored result, with their default
parameters and no floors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.checks import load
from audit.checks import names as known_checks
from audit.evidence.coverage.rule import LEAST, CoverageRule
from audit.runs.arms import ArmLinks
from audit.store import StoredArm, StoredCheck, StoredRun
from audit.suite.spec import ArmChecks
from engine.core.sequences import grouped

JUDGED: Final = "judged"
"""The key of an arm's checks and floors in its specification."""


@dataclass(frozen=True, slots=True)
class RecordedArms:
    """The arms of a run in its order, and how its candidates were judged.

    unknown: lines about checks and parameters that this version lacks; their results stay as they are.
    """

    links: tuple[ArmLinks, ...]
    checks: Mapping[str, ArmChecks]
    unknown: tuple[str, ...]


def recorded_arms(run: StoredRun, results: Iterable[StoredCheck]) -> RecordedArms:
    """The arms of a run with these stored results."""
    candidates = run.candidates
    links = tuple(_links(arm, [candidate.name for candidate in candidates]) for arm in run.arms)
    by_arm = grouped((result.arm, result.check) for result in results)
    every = {arm.name: _checks(arm, by_arm.get(arm.name, [])) for arm in candidates}
    known = {name: ArmChecks(_known(judged.checks), judged.coverage) for name, judged in every.items()}
    unknown = [line for name, judged in every.items() for line in _unknown(name, judged.checks)]
    return RecordedArms(links, known, tuple(unknown))


def _links(arm: StoredArm, candidates: Iterable[str]) -> ArmLinks:
    spec = arm.spec
    # names of companions are those of their candidates with the kind behind them
    of = next((name for name in candidates if arm.name == f"{name}/{arm.kind}"), None)
    noise = tuple(spec.get("noise", ()))
    return ArmLinks(arm.name, arm.kind, spec.get("baseline"), spec.get("control"), noise, spec.get("of", of))


def _checks(arm: StoredArm, stored: Iterable[str]) -> ArmChecks:
    if JUDGED in arm.spec:
        result = arm.spec[JUDGED]
        return ArmChecks(result["checks"], _rule(result["coverage"]))
    return ArmChecks({name: {} for name in stored}, CoverageRule(least=0))


def _rule(values: Mapping[str, Any]) -> CoverageRule:
    waived, demanded = tuple(values.get("waive", ())), tuple(values.get("demand", ()))
    return CoverageRule(int(values.get("least", LEAST)), waived, demanded, values.get("directed") in (True, "on"))


def _known(checks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    names = set(known_checks())
    return {
        name: {key: value for key, value in given.items() if key in load(name).defaults}
        for name, given in checks.items()
        if name in names
    }


def _unknown(arm: str, checks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    names, lines = set(known_checks()), []
    for name, given in checks.items():
        if name not in names:
            lines.append(f"{arm}: this version has no check {name}; its result stays")
            continue
        missing = sorted(set(given) - set(load(name).defaults))
        lines += [f"{arm}: check {name} has no parameter {key} any more; it was left out" for key in missing]
    return lines
