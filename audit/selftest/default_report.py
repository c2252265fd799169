"""The tables of faults in default suites, for the terminal and as JSON. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from audit.selftest.default_suite import DefaultDetection
from engine import faults

COLUMNS: Final = ("fault", "situation", "occurred", "tokens", "caught by", "undecided", "exit")
Row = tuple[str, ...]


def rows(detections: Sequence[DefaultDetection]) -> list[Row]:
    """One row per fault."""
    return [
        (
            found.fault,
            faults.load(found.fault).situation,
            "not recorded" if found.occurred is None else str(found.occurred),
            str(found.tokens),
            ", ".join(found.caught_by) or "-",
            ", ".join(found.undecided) or "-",
            ", ".join(map(str, sorted(found.codes))),
        )
        for found in detections
    ]


def failures(detections: Sequence[DefaultDetection]) -> list[str]:
    """The faults that a default suite does not catch, those that pass apart."""
    missed = [found for found in detections if not found.caught]
    passed = [found.fault for found in missed if found.codes.get(0)]
    undecided = [found.fault for found in missed if not found.codes.get(0)]
    found = [f"passed: {', '.join(passed)}"] if passed else []
    return found + ([f"undecided: {', '.join(undecided)}"] if undecided else [])


def document(detections: Sequence[DefaultDetection]) -> dict[str, Any]:
    """All counts as JSON."""
    return {"detections": [_entry(found) for found in detections], "failures": failures(detections)}


def _entry(found: DefaultDetection) -> Mapping[str, Any]:
    counts = {"verdicts": {name: dict(each) for name, each in found.verdicts.items()}, "codes": dict(found.codes)}
    return asdict(found) | counts | {"situation": faults.load(found.fault).situation, "caught_by": found.caught_by}
