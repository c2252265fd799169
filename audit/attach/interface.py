"""The interface of a report format, which has a place for the evidence or none, and the format of a report.

A statement beside the report binds its digest in any case. What the report itself carries is a pointer for its readers.

"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from audit.attach import REGISTRY, splice
from audit.store.base.canonical import sha256_json
from audit.text.documents import MIB
from audit.text.schema_errors import suggestion
from audit.text.unsafe import quoted
from engine.core.registry import load

KEY: Final = "audit"
MAX_REPORT_BYTES: Final = 256 * MIB
POINTED: Final = ("run", "record_root", "exit_code")
"""Facts of the predicate that a pointer repeats."""


class ReportFormat(Protocol):
    """A report format.

    whole: the report carries the whole predicate; else a pointer to it (`pointer`).
    carrying: false if the format has no place for either, so that only a statement binds the report.
    """

    @property
    def name(self) -> str:
        """The registered name."""

    @property
    def whole(self) -> bool:
        """True if `embed` gets the whole predicate."""

    @property
    def carrying(self) -> bool:
        """True if the format has a place."""

    def recognises(self, name: str, report: bytes) -> bool:
        """True if the file of that name is a report of this format."""

    def models_of(self, report: bytes) -> tuple[str, ...]:
        """The models that the report names; raises ValueError if it is not of this format."""

    def extract(self, report: bytes) -> Mapping[str, Any] | None:
        """The report's evidence; None without any. Raises ValueError if it is not of this format."""

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:
        """The report with the block; raises ValueError where there is no room for it."""

    def remove(self, report: bytes) -> bytes | None:
        """The exact bytes passed to `embed`; None if the format cannot restore them."""


@dataclass(frozen=True, slots=True)
class PointedReport:
    """The common part of formats with a place for a pointer; by default a report names no model.

    `fits` gets a file's name and bytes; it may raise ValueError where it cannot read them.
    """

    name: str
    fits: Callable[[str, bytes], bool]
    whole: bool = False
    carrying: bool = True

    def recognises(self, name: str, report: bytes) -> bool:
        """As `fits`; False where it raises ValueError."""
        try:
            return self.fits(name, report)
        except ValueError:
            return False

    def models_of(self, report: bytes) -> tuple[str, ...]:  # noqa: ARG002 - the interface's signature
        """None is named."""
        return ()


def pointer(predicate: Mapping[str, Any]) -> dict[str, Any]:
    """The part for a report without room for the whole predicate."""
    facts = {name: predicate[name] for name in POINTED}
    return {**facts, "predicate_sha256": sha256_json(predicate)}


@dataclass(frozen=True, slots=True)
class JsonReport:
    """A JSON report whose object at `container` holds the attachment under the key audit.

    `fits` returns true if the parsed report is of this format; `models` returns the models that it names.
    """

    name: str
    container: tuple[str, ...]
    fits: Callable[[Any], bool]
    models: Callable[[Mapping[str, Any]], tuple[str, ...]]
    whole: bool = True
    carrying: bool = True

    def recognises(self, name: str, report: bytes) -> bool:  # noqa: ARG002 - the interface's signature
        """True if the parsed report is of this format; raises ValueError if it is no JSON."""
        return self.fits(splice.parse(decoded(report)))

    def models_of(self, report: bytes) -> tuple[str, ...]:
        """The models that a report of this format names; empty if it names none."""
        return self.models(splice.parse(decoded(report)))

    def extract(self, report: bytes) -> Mapping[str, Any] | None:
        """The attachment that a report carries, or None."""
        value = splice.parse(decoded(report))
        for key in (*self.container, KEY):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None and splice.object_at(decoded(report), self.container).member(KEY) is not None:
            raise ValueError(f"its key {KEY!r} holds something else")
        return value if isinstance(value, Mapping) else None

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:
        """The report with the attachment; every other byte is unchanged."""
        text = _valid(report)
        return splice.insert(text, splice.object_at(text, self.container), KEY, block).encode()

    def remove(self, report: bytes) -> bytes:
        """The report without its attachment: exactly the bytes passed to `embed`."""
        text = _valid(report)
        return splice.remove(text, splice.object_at(text, self.container), KEY).encode()


@dataclass(frozen=True, slots=True)
class PlainFile(PointedReport):
    """A file without a place for evidence."""

    carrying: bool = False

    def extract(self, report: bytes) -> None:  # noqa: ARG002 - the interface's signature
        """Nothing."""
        return

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:  # noqa: ARG002 - the interface's signature
        """The report unchanged."""
        return report

    def remove(self, report: bytes) -> bytes:
        """The report unchanged."""
        return report


def decoded(report: bytes) -> str:
    """The text of a report; raises ValueError if it is not UTF-8."""
    try:
        return report.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error


def _valid(report: bytes) -> str:
    text = decoded(report)
    splice.parse(text)
    return text


UNSIGNED: Final = ("lm_eval", "json")
"""Formats that are recognised without a signature, for reports that carry the whole evidence."""


def find_format(path: str, report: bytes, name: str | None, *, anything: bool) -> ReportFormat:
    """The format called `name`, or the first that recognises the report; `anything` includes files without a place.

    Raises:
        ValueError: unknown format, or the report does not have it.
    """
    if name is not None and name not in REGISTRY:
        raise ValueError(f"unknown format {quoted(name)}; {suggestion(name, REGISTRY)}")
    if name is not None:
        form = load_format(name)
        if form.recognises(path, report):
            return form
        raise ValueError(f"it is not of the format {name}")
    for candidate in REGISTRY if anything else UNSIGNED:
        form = load_format(candidate)
        with suppress(ValueError):  # what is no JSON is no report in JSON
            if form.recognises(path, report):
                return form
    splice.parse(decoded(report))
    raise ValueError("it is not a JSON object")


def load_format(name: str) -> ReportFormat:
    """A registered format."""
    form: ReportFormat = load(REGISTRY[name])
    return form
