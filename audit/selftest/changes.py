"""Changes of one recorded quantity, each in several ways: columns of numbers, and the values of a JSON document."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
Column = Callable[[Values, Values, np.random.Generator], Values]
"""(column, another request's column, numbers) -> the changed column."""
TINY: Final = 1e-3
"""Relative size of a small change."""


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """A value with one change. `place` names the changed part of a document, without the numbers of list entries."""

    place: str
    way: str
    value: Any


def _filled(value: float, whole: Callable[[Any], Any]) -> Column:
    return lambda column, _other, _numbers: np.full_like(
        column, value if column.dtype.kind == "f" else whole(np.iinfo(column.dtype))
    )


def _one(change: Callable[[Any], Any]) -> Column:
    def changed(column: Values, _other: Values, numbers: np.random.Generator) -> Values:
        result = column.copy()
        flat = result.reshape(-1)
        at = int(numbers.integers(len(flat)))
        # numbers wrap around: a column of codes or digests has a next value too
        with np.errstate(over="ignore"):
            flat[at] = change(flat[at])
        return result

    return changed


def _little(value: Any) -> Any:
    """A thousandth more, or one less."""
    return value * (1 + TINY) if value.dtype.kind == "f" else value - value.dtype.type(1)


def _swapped(column: Values, _other: Values, numbers: np.random.Generator) -> Values:
    result = column.copy()
    first, second = numbers.integers(len(column), size=2)
    result[[first, second]] = result[[second, first]]
    return result


COLUMN_WAYS: Final[Mapping[str, Column]] = {
    "zero": _filled(0.0, lambda _limits: 0),
    "largest": _filled(1e30, lambda limits: limits.max),
    "smallest": _filled(-1e30, lambda limits: limits.min),
    "no number": _filled(float("nan"), lambda limits: limits.max // 2),
    "one more": _one(lambda value: value + value.dtype.type(1)),
    "one a little other": _one(_little),
    "two swapped": _swapped,
    "reversed": lambda column, _other, _numbers: column[::-1],
    "another request's": lambda column, other, _numbers: np.resize(other, column.shape) if len(other) else column,
    "one short": lambda column, _other, _numbers: column[:-1],
}
"""The ways of changing a column."""


def changed_columns(column: Values, other: Values, numbers: np.random.Generator) -> Iterator[tuple[str, Values]]:
    """By way, the columns that differ from a `column` with entries; `other` is another request's."""
    for way, change in COLUMN_WAYS.items() if len(column) else ():
        changed = change(column, other, numbers)
        if not np.array_equal(changed, column, equal_nan=column.dtype.kind == "f"):
            yield way, changed


_ABSENT: Final = object()
NUMBER_WAYS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "zero": lambda value: type(value)(0),
    "one more": lambda value: value + 1,
    "one less": lambda value: value - 1,
    "negative": lambda value: -value - 1,
    "twice": lambda value: 2 * value,
    "largest": lambda value: type(value)(2**53),
    "text": str,
}
TEXT_WAYS: Final[Mapping[str, Callable[[str], Any]]] = {
    "empty": lambda _value: "",
    "one letter more": lambda value: value + "e",
    "one letter less": lambda value: value[:-1],
    "first letter lost": lambda value: value[1:],
    "reversed": lambda value: value[::-1],
    "other case": str.swapcase,
    "a blank more": lambda value: value + " ",
    "strange": lambda _value: "\x00\u202e",
    "number": lambda _value: 7,
}
FLAG_WAYS: Final[Mapping[str, Callable[[bool], Any]]] = {"inverted": lambda value: not value, "number": int}
LIST_WAYS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "empty": lambda _value: [],
    "last lost": lambda value: value[:-1],
    "first lost": lambda value: value[1:],
    "last twice": lambda value: value + value[-1:],
    "reversed": lambda value: value[::-1],
    "rotated": lambda value: value[1:] + value[:1],
    "mapping": lambda _value: {"a": 1},
}
ANY_WAYS: Final[Mapping[str, Callable[[Any], Any]]] = {"null": lambda _value: None, "absent": lambda _value: _ABSENT}


def _ways(value: Any) -> Mapping[str, Callable[[Any], Any]]:
    kinds = ((bool, FLAG_WAYS), (int | float, NUMBER_WAYS), (str, TEXT_WAYS), (Sequence, LIST_WAYS))
    return {**next((ways for kind, ways in kinds if isinstance(value, kind)), {}), **ANY_WAYS}


def changed_documents(document: Any, numbers: np.random.Generator, place: str = "") -> Iterator[ChangedValue]:
    """The JSON documents with one changed value; of a list's entries one is changed, which `numbers` choose."""
    if isinstance(document, tuple):
        document = list(document)
    if place:
        for way, change in _ways(document).items():
            value = change(document)
            if value is _ABSENT or value != document:
                yield ChangedValue(place, way, value)
    for key in _chosen(document, numbers):
        named = str(key) if isinstance(document, Mapping) else "[]"
        for part in changed_documents(document[key], numbers, f"{place}.{named}" if place else named):
            yield ChangedValue(part.place, part.way, _with_entry(document, key, part.value))


def _chosen(document: Any, numbers: np.random.Generator) -> Sequence[Any]:
    if isinstance(document, Mapping):
        return list(document)
    return [int(numbers.integers(len(document)))] if isinstance(document, list) and document else []


def _with_entry(document: Any, key: Any, value: Any) -> Any:
    if isinstance(document, Mapping):
        kept = {**document, key: value}
        return {name: item for name, item in kept.items() if item is not _ABSENT}
    entry = () if value is _ABSENT else (value,)
    return [*document[:key], *entry, *document[key + 1 :]]
