"""The catalogue of real-world bugs: each is a small wrapper that breaks one thing.

The faults exist to show that the checks detect them; an arm with a fault names it in its effective configuration. A
fault is a constant in the file of its theme and one line in `engine.core.registry.FAULTS`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from engine.core.errors import InvalidRequest
from engine.core.registry import FAULTS, resolve

if TYPE_CHECKING:
    # names are read without torch, which these import
    from engine.decode.seams import EngineParts
    from engine.faults.interface import Fault

REGISTRY: Final = FAULTS


def load(name: str) -> Fault:
    """The fault behind a registered name. Raises InvalidRequest: unknown fault."""
    fault: Fault = resolve(REGISTRY, name, "fault")
    return replace(fault, name=name)


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
