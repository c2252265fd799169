"""JUnit XML: the pointer is a property of the first test suite."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from audit.attach.interface import PointedReport

NAME: Final = "specaudit"
SUITE: Final = "testsuite"
PROPERTIES: Final = "properties"
DEEPEST: Final = 100
INSERTED: Final = re.compile(
    rb'(<properties>)?<property name="specaudit" value=("[^"]*"|\'[^\']*\')/>(?(1)</properties>)'
)


@dataclass(slots=True)
class _Place:
    """Where the first suite's properties are: offsets in bytes, and the pointer's value if there is one."""

    root: str | None = None
    suite: int | None = None
    properties: int | None = None
    value: str | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class JUnit(PointedReport):
    """A report of test suites, which name no model."""

    def extract(self, report: bytes) -> Mapping[str, Any] | None:
        """The pointer among the first suite's properties."""
        value = _scan(report).value
        block = None if value is None else json.loads(value)
        return block if isinstance(block, Mapping) else None

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:
        """The report with the pointer; every other byte is unchanged."""
        place = _scan(report)
        item = f'<property name="{NAME}" value={quoteattr(json.dumps(block))}/>'
        if place.properties is not None:
            at = _after_tag(report, place.properties)
        elif place.suite is not None:
            at = _after_tag(report, place.suite)
            item = f"<{PROPERTIES}>{item}</{PROPERTIES}>"
        else:
            raise ValueError("it has no test suite")
        return report[:at] + item.encode("ascii") + report[at:]

    def remove(self, report: bytes) -> bytes:
        """The report without the pointer."""
        changed, count = INSERTED.subn(b"", report, count=1)
        if not count:
            raise ValueError("it has no pointer where this program writes one")
        return changed


def _after_tag(report: bytes, begin: int) -> int:
    end = report.index(b">", begin)
    if report[end - 1 : end] == b"/":
        raise ValueError("its first test suite is empty")
    return end + 1


def _scan(report: bytes) -> _Place:
    """Find the first suite and its properties; raises ValueError for what is no XML, or declares entities."""
    place, parser = _Place(), expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        place.depth += 1
        if place.depth > DEEPEST:
            raise ValueError("nested too deep")
        place.root = place.root or tag
        if tag == SUITE and place.suite is None:
            place.suite = parser.CurrentByteIndex
        elif tag == PROPERTIES and place.suite is not None and place.properties is None:
            place.properties = parser.CurrentByteIndex
        elif tag == "property" and attributes.get("name") == NAME and place.value is None:
            place.value = attributes.get("value")

    def end(_tag: str) -> None:
        place.depth -= 1

    def refuse(*_: Any) -> None:
        raise ValueError("it declares entities")

    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = start, end, refuse
    try:
        parser.Parse(report, True)
    except expat.ExpatError as error:
        raise ValueError(f"it is not XML: {error}") from error
    return place


FORMAT = JUnit("junit", lambda name, report: name.endswith(".xml") and _scan(report).root in (SUITE, "testsuites"))
