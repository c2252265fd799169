"""The sections of the report in the page's order. A new section is a file, a template and a line here."""

from __future__ import annotations

from functools import cache
from typing import Final

from audit.errors import UserError
from audit.report.html.section import ReportSection
from engine.core.registry import load

SECTIONS: Final = (
    *("audit.report.html.sections.verdict_board:SECTION", "audit.report.html.sections.certificate:SECTION"),
    *("audit.report.html.sections.acceptance:SECTION", "audit.report.html.sections.divergences:SECTION"),
    *("audit.report.html.sections.generations:SECTION", "audit.report.html.sections.law:SECTION"),
    *("audit.report.html.sections.numerics:SECTION", "audit.report.html.sections.provenance:SECTION"),
    "audit.report.html.sections.findings:SECTION",
)
"""Places of the sections, imported when a page is made."""


@cache
def sections() -> tuple[ReportSection, ...]:
    """The sections in the page's order."""
    return tuple(_load(place) for place in SECTIONS)


def section(name: str) -> ReportSection:
    """The section of a name.

    Raises:
        UserError: the report has no such section.
    """
    match = next((one for one in sections() if one.name == name), None)
    if match is None:
        raise UserError(f"no section {name!r}; the report has: {', '.join(one.name for one in sections())}")
    return match


def _load(place: str) -> ReportSection:
    loaded = load(place)
    if not isinstance(loaded, ReportSection):
        raise TypeError(f"{place} is no section of the report")
    return loaded
