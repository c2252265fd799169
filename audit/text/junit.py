"""JUnit XML: one outcome per case, counted the way that CI systems read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from xml.etree import ElementTree

from audit.text.unsafe import visible


class CaseTag(StrEnum):
    """The element that holds a case's outcome."""

    FAILURE = "failure"
    ERROR = "error"
    SKIPPED = "skipped"
    OUTPUT = "system-out"
    """A remark on a case that passes."""


@dataclass(frozen=True, slots=True)
class JunitCase:
    """One case; it passes without a tag. `message` is the outcome in one line, `lines` all of it."""

    classname: str
    name: str
    tag: CaseTag | None = None
    message: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class JunitSuite:
    """Cases under one name, and when they were decided."""

    name: str
    cases: Sequence[JunitCase]
    at: datetime


def junit(suites: Sequence[JunitSuite]) -> str:
    """The document."""
    root = ElementTree.Element("testsuites")
    root.extend(map(_suite, suites))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _suite(suite: JunitSuite) -> ElementTree.Element:
    counted = {"failures": CaseTag.FAILURE, "errors": CaseTag.ERROR, "skipped": CaseTag.SKIPPED}
    counts = {name: str(sum(case.tag is tag for case in suite.cases)) for name, tag in counted.items()}
    attributes = {"name": visible(suite.name), "tests": str(len(suite.cases)), **counts}
    element = ElementTree.Element("testsuite", attributes, timestamp=suite.at.isoformat(timespec="seconds"))
    element.extend(map(_case, suite.cases))
    return element


def _case(case: JunitCase) -> ElementTree.Element:
    element = ElementTree.Element("testcase", classname=visible(case.classname), name=visible(case.name))
    if case.tag is not None:
        outcome = ElementTree.SubElement(element, case.tag.value)
        if case.tag is not CaseTag.OUTPUT:
            outcome.set("message", visible(case.message))
        outcome.text = "\n".join(map(visible, case.lines))
    return element
