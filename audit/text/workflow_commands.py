"""Workflow commands of GitHub Actions, which make annotations of lines."""

from __future__ import annotations

from typing import Final

from audit.text.unsafe import visible

MOST: Final = 10
"""Annotations of one level that GitHub shows of a step."""


def annotation(level: str, title: str, text: str) -> str:
    """The command that annotates a run; `level` is error, warning or notice."""
    named = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={named}::{_escaped(text)}"


def _escaped(text: str) -> str:
    """Text in the data of a command; what is not printable is visible already, so no line can end."""
    return visible(text).replace("%", "%25")
