"""The kinds of the facts in a request's header that readers compute with; all other facts are text for people."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

CONSTRAINT: Final = "constraint"
"""Key of what an answer's grammar allowed, or what it applies to."""
VERSION_AFTER: Final = "version_after"
"""Key of the last request's facts: the server's version behind the arm."""
SERVING: Final = " serving "
"""In a version: the model's name comes next."""
OTHER_PROMPT: Final = "other_prompt"
"""Key of a request whose prompt the server read as other ids, or another number of them."""
MOST: Final = 2**31 - 1
"""Most rounds of a loop, and rows of a batch."""
DIGEST: Final = re.compile("[0-9a-f]{16}")
Test = Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    """True for a number that counts rounds, rows or characters."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def is_text(value: Any) -> bool:
    """True for text."""
    return isinstance(value, str)


def _listed(test: Test) -> Test:
    return lambda value: isinstance(value, Sequence) and not is_text(value) and all(map(test, value))


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_span(value: Any) -> bool:
    return _listed(is_whole)(value) and len(value) == 2 and value[0] <= value[1]


def _are_spans(value: Any) -> bool:
    """True for stretches in order, none of which touches the next one."""
    if not _listed(_is_span)(value):
        return False
    return all(before[1] < after[0] for before, after in pairwise(value))


def _is_offer(value: Any) -> bool:
    if not _is_object(value):
        return False
    offered, calls, spans = (value.get(name, ()) for name in ("offered", "calls", "spans"))
    named = _listed(lambda call: _is_object(call) and is_text(call.get("name")))
    # text that opens as a call has a span even if it holds none
    return _listed(_is_object)(offered) and named(calls) and _listed(_is_span)(spans)


MASKED: Final[Mapping[str, Test]] = {
    "masks": _listed(lambda value: is_text(value) and DIGEST.fullmatch(value) is not None),
    "counts": _listed(is_whole),
    "refused": lambda value: value is None or is_whole(value),
    "whole": lambda value: isinstance(value, bool),
    **dict.fromkeys(("library", "text"), is_text),
}
"""The account of an answer's masks."""


def _is_account(value: Any) -> bool:
    """True for the account of a grammar; one with masks has all that belongs to them."""
    if not _is_object(value):
        return False
    return "masks" not in value or all(name in value and test(value[name]) for name, test in MASKED.items())


KINDS: Final[Mapping[str, Test]] = {
    **dict.fromkeys(("row", "round", "level"), is_whole),
    **dict.fromkeys(("call", "decoded"), is_text),
    **dict.fromkeys(("unlike", "rounds"), _are_spans),
    **dict.fromkeys(("stream", "error", "request"), _is_object),
    CONSTRAINT: _is_account,
    **dict.fromkeys(("ends", "withdrawals"), _listed(is_whole)),
    "tools": _is_offer,
}


def facts_fault(facts: Mapping[str, Any]) -> str | None:
    """The first fact of another kind than readers expect; None if they can read all."""
    strange = next((name for name, test in KINDS.items() if name in facts and not test(facts[name])), None)
    return None if strange is None else f"the fact {strange} of the request is of another kind: {facts[strange]!r:.80}"
