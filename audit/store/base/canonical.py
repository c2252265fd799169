"""Canonical bytes of values, equal on all machines, and values that a database can hold.

Canonical JSON here is: keys sorted, no spaces, ASCII with escapes, no NaN and no infinity. JSON has no such numbers, so
they become null. Integers that may exceed 2^53 (seeds, streams) are stored as text by their writers. Moments are ISO
8601.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final

from engine.record.effective import Effective

_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
PLAIN: Final = frozenset((str, int, bool, type(None)))
NUL_SIGN: Final = "\u2400"
SIGN_ITSELF: Final = "\ufe00"
"""Behind the sign, a text had the sign. It and the next are variation selectors, which nothing draws."""
NUL_BEFORE_SELECTOR: Final = "\ufe01"
_SIGNS: Final = re.compile(f"{NUL_SIGN}|\x00")
_STORED: Final = re.compile(f"{NUL_SIGN}[{SIGN_ITSELF}{NUL_BEFORE_SELECTOR}]?")


def jsonable(value: Any) -> Any:
    """The value as plain JSON types: NaN and infinities become None, tuples become lists.

    A text enum becomes its value, a numbered enum its name.

    Raises:
        TypeError: the value has no JSON form.
    """
    if type(value) in PLAIN:  # most values, and the other tests take ten times as long
        return value
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key if type(key) is str else str(jsonable(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        listed = sorted(value) if isinstance(value, set | frozenset) else value
        return [item if type(item) in PLAIN else jsonable(item) for item in listed]
    if isinstance(value, Effective):
        return jsonable(value.to_json())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # numpy's scalars and arrays, without an import of numpy
        return jsonable(value.tolist())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def named(value: object, *names: str) -> dict[str, Any]:
    """Attributes of a value by name, as plain JSON types."""
    return {name: jsonable(getattr(value, name)) for name in names}


def to_json(value: Any) -> str:
    """Canonical JSON text of a value."""
    return _encode(jsonable(value))


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(to_json(value).encode("ascii")).hexdigest()


def number(value: float | None) -> float | None:
    """A float for a column: NaN becomes None (NULL), infinities stay."""
    return None if value is None or math.isnan(value) else float(value)


def storable(text: str) -> str:
    """Text for a column: PostgreSQL refuses NUL and UTF-8 has no lone surrogates, so both are replaced.

    NUL becomes U+2400, a lone surrogate U+FFFD. The exact tokens stay in the trace.
    """
    return text.replace("\x00", "\u2400").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def stored_text(text: str) -> str:
    """An answer's text for its column, from which `exact_text` reads it back but for lone surrogates."""

    def sign(match: re.Match[str]) -> str:
        if match[0] == NUL_SIGN:
            return NUL_SIGN + SIGN_ITSELF
        ambiguous = text[match.end() : match.end() + 1] in (SIGN_ITSELF, NUL_BEFORE_SELECTOR)
        return NUL_SIGN + (NUL_BEFORE_SELECTOR if ambiguous else "")

    return storable(_SIGNS.sub(sign, text))


def exact_text(column: str) -> str:
    """The answer's text behind a column that `stored_text` wrote."""
    return _STORED.sub(lambda match: NUL_SIGN if match[0].endswith(SIGN_ITSELF) else "\x00", column)
