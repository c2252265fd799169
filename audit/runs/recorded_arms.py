"""The arms of a stored run as they were judged: their checks, floors and companions, from the record alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.checks import load
from audit.checks import names as known_checks
from audit.evidence.coverage.rule import LEAST, CoverageRule
from audit.runs.arms import ArmLinks
from audit.store import StoredArm, StoredRun
from audit.suite.spec import ArmChecks

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


def recorded_arms(run: StoredRun) -> RecordedArms:
    """The arms of a run; a candidate whose record states no checks has none."""
    stated = {arm.name: arm.spec.get(JUDGED, {"checks": {}, "coverage": {}}) for arm in run.candidates}
    checks = {name: ArmChecks(_known(judged["checks"]), _rule(judged["coverage"])) for name, judged in stated.items()}
    unknown = [line for name, judged in stated.items() for line in _unknown(name, judged["checks"])]
    return RecordedArms(tuple(map(_links, run.arms)), checks, tuple(unknown))


def _links(arm: StoredArm) -> ArmLinks:
    spec, noise = arm.spec, tuple(arm.spec.get("noise", ()))
    return ArmLinks(arm.name, arm.kind, spec.get("baseline"), spec.get("control"), noise, spec.get("of"))


def _rule(values: Mapping[str, Any]) -> CoverageRule:
    waived, demanded = tuple(values.get("waive", ())), tuple(values.get("demand", ()))
    return CoverageRule(int(values.get("least", LEAST)), waived, demanded, bool(values.get("directed")))


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
