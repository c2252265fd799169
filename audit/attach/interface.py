"""The interface of a report format: inserting an attachment and extracting it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.attach import splice
from audit.text.documents import MIB

KEY: Final = "audit"
MAX_REPORT_BYTES: Final = 256 * MIB


@dataclass(frozen=True, slots=True)
class ReportFormat:
    """A JSON report whose object at `container` holds the attachment under the key audit.

    `recognises` returns true if the parsed report is of this format; `models` returns the models that it names.
    """

    name: str
    container: tuple[str, ...]
    recognises: Callable[[Any], bool]
    models: Callable[[Mapping[str, Any]], tuple[str, ...]]

    def models_of(self, report: bytes) -> tuple[str, ...]:
        """The models that a report of this format names; empty if it names none.

        Raises:
            ValueError: the report is not of this format.
        """
        return self.models(splice.parse(_text(report)))

    def extract(self, report: bytes) -> Mapping[str, Any] | None:
        """The attachment that a report carries, or None.

        Raises:
            ValueError: the report is not of this format.
        """
        value = splice.parse(_text(report))
        for key in (*self.container, KEY):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else None

    def carries(self, report: bytes) -> bool:
        """True if the report has the key audit, whatever its value.

        Raises:
            ValueError: the report is not of this format.
        """
        return splice.object_at(_valid(report), self.container).member(KEY) is not None

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:
        """The report with the attachment; every other byte is unchanged.

        Raises:
            ValueError: the report is not of this format.
        """
        text = _valid(report)
        return splice.insert(text, splice.object_at(text, self.container), KEY, block).encode()

    def remove(self, report: bytes) -> bytes:
        """The report without its attachment: exactly the bytes passed to `embed`.

        Raises:
            ValueError: the report is not of this format.
        """
        text = _valid(report)
        return splice.remove(text, splice.object_at(text, self.container), KEY).encode()


def _text(report: bytes) -> str:
    try:
        return report.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error


def _valid(report: bytes) -> str:
    text = _text(report)
    splice.parse(text)
    return text
