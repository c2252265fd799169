"""Numerics: the arithmetic of each arm, what a probe of the machine showed of it, and which bits were equal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.evidence.coverage.scope import ArmScope
from audit.evidence.verdicts import Verdict
from audit.report.html.registry import Nothing, ReportSection, ReportSource
from audit.report.tables.verdicts import scopes
from audit.store import StoredArm, StoredCheck

PROMISES: Final[Mapping[str, str]] = {
    "none": "no bit is promised",
    "chain": "the same bits for one token at a time, chains of any length and any batch",
    "tree": "the same bits for one token at a time, chains, trees and any batch",
    "everywhere": "the same bits for one token at a time, chains, trees, any batch and any machine",
}
"""Meanings of a numerics mode's promises, weakest first."""
CHECKS: Final = ("bitwise", "anchor", "draft_anchor")
"""Checks whose numbers are about rows."""


@dataclass(frozen=True, slots=True)
class ArmNumerics:
    """The target's arithmetic in one arm; `probe` has what its probe reported, by name, without the properties."""

    arm: StoredArm
    mode: str
    requested: str
    promises: str
    meaning: str
    reason: str
    probe: Mapping[str, Any]
    passed: bool | None
    held: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class RunNumerics:
    """The arms that report their arithmetic, those that do not, the probed properties, and what was compared."""

    arms: tuple[ArmNumerics, ...]
    silent: tuple[str, ...]
    properties: tuple[str, ...]
    compared: tuple[StoredCheck, ...]
    scopes: Mapping[str, ArmScope]
    """By arm, what its verdicts rest on."""


def read(source: ReportSource) -> RunNumerics | Nothing:
    """The numerics of a run."""
    shown = source.results
    arms = tuple(_arms(shown.run.arms))
    compared = tuple(check for check in shown.checks if check.check in CHECKS and check.verdict is not Verdict.NOT_RUN)
    if not arms and not compared:
        return Nothing("No arm of this run reports its arithmetic, and no check compared bits or rows.")
    reporting = {one.arm.name for one in arms}
    silent = tuple(arm.name for arm in shown.run.arms if arm.name not in reporting and not arm.kind.reads)
    properties = dict.fromkeys(name for one in arms for name in one.held)
    return RunNumerics(arms, silent, tuple(properties), compared, scopes(shown.checks))


def _arms(arms: tuple[StoredArm, ...]) -> Iterator[ArmNumerics]:
    for arm in arms:
        numerics = arm.effective.numerics
        if numerics is None or arm.kind.reads:
            continue
        reported = numerics.facts.get("probe")
        probe: Mapping[str, Any] = reported if isinstance(reported, Mapping) else {}
        listed = probe.get("properties")
        yield ArmNumerics(
            arm=arm,
            mode=numerics.mode or "",
            requested=str(numerics.facts.get("requested") or ""),
            promises=numerics.promises or "",
            meaning=PROMISES.get(numerics.promises or "", ""),
            reason=numerics.reason or "",
            probe={name: value for name, value in probe.items() if isinstance(value, str | int) and name != "passed"},
            passed=probe.get("passed") if isinstance(probe.get("passed"), bool) else None,
            held={str(one["name"]): bool(one["held"]) for one in listed} if isinstance(listed, list) else {},
        )


SECTION: Final = ReportSection(
    "numerics",
    "Numerics",
    "In which arithmetic did the target run, and are its bits the same with speculation and without?",
    read,
)
