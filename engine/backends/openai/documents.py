"""JSON documents of a server, bounded in the number of their values and in depth."""

import json
from typing import Any, Final

MOST_VALUES: Final = 2**18
"""Separators in a JSON document: each may become an object of a hundred bytes."""
VALUES_PER_BYTE: Final = 1 / 4
"""Of documents so long that a request with many log-probabilities asked for them."""
MAX_DEPTH: Final = 100
BRIEF: Final = 500
"""Characters of a server's word that become a fact of the record."""


def parse(text: str) -> Any:
    """A JSON document of bounded size and depth.

    Raises:
        ValueError: it is none, or has too many values or too much nesting.
        RecursionError: it is nested deeper still.
    """
    count = text.count(",") + text.count("[") + text.count("{")
    if count > max(MOST_VALUES, len(text) * VALUES_PER_BYTE):
        raise ValueError(f"more than {MOST_VALUES} values")
    document = json.loads(text)
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper(document, MAX_DEPTH):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return document


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(part, levels - 1) for part in parts)


def brief(value: Any) -> Any:
    """A server's value as a fact of the record: a number, or text of bounded length."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return str(value)[:BRIEF]
