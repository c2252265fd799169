"""The catalogue of real-world bugs: each a small wrapper that breaks one thing.

A fault is added by one file and one line in `REGISTRY`. They exist to show that
the checks see them; an arm with a fault says so in its effective configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.errors import InvalidRequest
from engine.faults.base import Fault
from engine.parts import EngineParts
from engine.registry import resolve

REGISTRY: Final[Mapping[str, str]] = {
    "argmax_draft_soft_q": "engine.faults.argmax_draft_soft_q:FAULT",
}


def load(name: str) -> Fault:
    """The fault behind a registered name.

    Raises:
        InvalidRequest: unknown fault.
    """
    fault: Fault = resolve(REGISTRY, name, "fault")
    return fault


def break_parts(name: str, parts: EngineParts) -> EngineParts:
    """The parts with one fault built in.

    Raises:
        InvalidRequest: unknown fault, or one that has no place in the arm's verification rule.
    """
    fault, protocol = load(name), parts.verifier.facts.protocol
    if fault.suits.protocols and protocol not in fault.suits.protocols:
        rules = ", ".join(fault.suits.protocols)
        raise InvalidRequest(f"fault {name} has no place in the {protocol} rule; it breaks: {rules}")
    return fault.apply(parts)
