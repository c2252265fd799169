"""Tools that prompts offer: what a suite asks of them, and whether the backend can carry it out."""

from __future__ import annotations

from collections.abc import Iterable

from audit.suite.spec import Case
from audit.text.documents import Document, Place, quoted
from engine.backends import REGISTRY
from engine.backends.catalogue import NAMED
from engine.core.types import ToolOffer


def offers_tools(cases: Iterable[Case]) -> bool:
    """True if any case offers tools in whose answers calls are looked for."""
    return any(case.tools and case.tool_choice != "none" for case in cases)


def demands_call(case: Case) -> bool:
    """True if the case's answer must call a tool."""
    return bool(case.tools) and ToolOffer(case.tools, case.tool_choice).demands


def require_tool_choices(document: Document, place: Place, cases: Iterable[Case], backend: str) -> None:
    """Raise at `place` of the document if the backend cannot carry out a case's tool choice."""
    known = REGISTRY[backend]
    for case in cases:
        kind = case.tool_choice if isinstance(case.tool_choice, str) else NAMED
        if not case.tools or kind in known.tool_choices:
            continue
        problem = f"backend {backend}: tool_choice of case {quoted(case.id)} is {kind}, which is not known to it"
        raise document.error(place, f"{problem}; write one of: {', '.join(known.tool_choices)}")
