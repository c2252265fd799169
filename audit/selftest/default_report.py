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
            detection.fault,
            faults.load(detection.fault).situation,
            "not recorded" if detection.occurred is None else str(detection.occurred),
            str(detection.tokens),
            ", ".join(detection.caught_by) or "-",
            ", ".join(detection.undecided) or "-",
            ", ".join(map(str, sorted(detection.codes))),
        )
        for detection in detections
    ]


def failures(detections: Sequence[DefaultDetection]) -> list[str]:
    """The faults that a default suite does not catch, those that pass apart."""
    missed = [detection for detection in detections if not detection.caught]
    passed = [result.fault for result in missed if result.codes.get(0)]
    undecided = [result.fault for result in missed if not result.codes.get(0)]
    outcome = [f"passed: {', '.join(passed)}"] if passed else []
    return outcome + ([f"undecided: {', '.join(undecided)}"] if undecided else [])


def document(detections: Sequence[DefaultDetection]) -> dict[str, Any]:
    """All counts as JSON."""
    return {"detections": [_entry(detection) for detection in detections], "failures": failures(detections)}


def _entry(detection: DefaultDetection) -> Mapping[str, Any]:
    counts = {
        "verdicts": {name: dict(item) for name, item in detection.verdicts.items()},
        "codes": dict(detection.codes),
    }
    return (
        asdict(detection)
        | counts
        | {"situation": faults.load(detection.fault).situation, "caught_by": detection.caught_by}
    )
