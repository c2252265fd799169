"""Formats that CI systems read: JUnit XML, SARIF 2.1.0, and the workflow commands of GitHub Actions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
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


SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class SarifResult:
    """One result: its rule, its level (error, warning or note), what it says, and the names that lead to its place."""

    rule: str
    level: str
    text: str
    place: Sequence[str]


def sarif(tool: str, rules: Mapping[str, str], results: Sequence[SarifResult], properties: Mapping[str, Any]) -> str:
    """The document, indented.

    `tool` is the program that decided, `rules` are descriptions by id, of every rule that a result names, `properties`
    are facts about the whole.
    """
    order = {rule: index for index, rule in enumerate(rules)}
    described = [{"id": visible(rule), "shortDescription": {"text": visible(text)}} for rule, text in rules.items()]
    run = {
        "tool": {"driver": {"name": tool, "rules": described}},
        "results": [_result(result, order[result.rule]) for result in results],
        "properties": dict(properties),
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(result: SarifResult, index: int) -> dict[str, Any]:
    place = {"fullyQualifiedName": visible("/".join(part for part in result.place if part))}
    return {
        "ruleId": visible(result.rule),
        "ruleIndex": index,
        "level": result.level,
        "message": {"text": visible(result.text)},
        "locations": [{"logicalLocations": [place]}],
    }


MOST_ANNOTATIONS: Final = 10
"""Annotations of one level that GitHub shows of a step."""


def annotation(level: str, title: str, text: str) -> str:
    """The command that annotates a run; `level` is error, warning or notice."""
    named = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={named}::{_escaped(text)}"


def _escaped(text: str) -> str:
    """Text in the data of a command; what is not printable is visible already, so no line can end."""
    return visible(text).replace("%", "%25")
