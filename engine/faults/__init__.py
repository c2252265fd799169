"""The catalogue of real-world bugs: each a small wrapper that breaks one thing.

A fault is added by one file and one line in `REGISTRY`. They exist to show that
the checks see them; an arm with a fault says so in its effective configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from engine.drafting import DrawRule
from engine.registry import resolve
from engine.verify.base import Verifier

REGISTRY: Final[Mapping[str, str]] = {
    "argmax_draft_soft_q": "engine.faults.argmax_draft_soft_q:FAULT",
}


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The replaceable parts of an engine."""

    verifier: Verifier
    draw: DrawRule


@dataclass(frozen=True, slots=True)
class Fault:
    """One bug: what it breaks, where it was seen, and how it is re-created."""

    name: str
    breaks: str
    """The claim that no longer holds."""
    upstream: str
    """Repository and number of the bug that it re-creates."""
    apply: Callable[[EngineParts], EngineParts]


def break_parts(name: str, parts: EngineParts) -> EngineParts:
    """The parts with one fault built in.

    Raises:
        InvalidRequest: unknown fault.
    """
    fault: Fault = resolve(REGISTRY, name, "fault")
    return fault.apply(parts)
