"""Find the format of a report."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from audit.attach import REGISTRY, splice
from audit.attach.interface import ReportFormat, decoded
from audit.text.schema_errors import suggestion
from audit.text.unsafe import quoted
from engine.core.registry import load

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
