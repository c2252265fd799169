"""Output formats of a run's verdicts for programs. A format is a function from results to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from audit.report.tables.results import Results
from engine.core.registry import resolve

REGISTRY: Final[Mapping[str, str]] = {
    "junit": "audit.report.formats.verdicts:junit",
    "github": "audit.report.formats.verdicts:github",
    "sarif": "audit.report.formats.verdicts:sarif",
    "summary": "audit.report.formats.verdicts:summary",
}


def render(name: str, shown: Results) -> str:
    """A run in a registered format, without a newline at the end."""
    text: str = resolve(REGISTRY, name, "format")(shown)
    return text
