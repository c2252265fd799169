"""One arm of a suite as a whole matrix of arms: sampling parameters varied alone and in pairs.

For engines of which it is not known that they honour every parameter under
speculation. Values only; knows nothing about engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One arm of the matrix: what its name has behind the arm's, and the parameters that it sets."""

    suffix: str
    sampling: Mapping[str, Any]


def cells(vary: Mapping[str, Sequence[Any]], *, pairs: bool) -> Iterator[MatrixCell]:
    """The arm itself, every value of every parameter alone, then, with `pairs`, every two parameters' values together.

    Values of one parameter are never combined, and the order is that of the mapping.
    """
    yield MatrixCell("", {})
    single = {key: [_cell(key, index, value) for index, value in enumerate(values)] for key, values in vary.items()}
    for found in single.values():
        yield from found
    for first, second in combinations(single, 2) if pairs else ():
        yield from (
            MatrixCell(one.suffix + two.suffix, {**one.sampling, **two.sampling})
            for one in single[first]
            for two in single[second]
        )


def _cell(key: str, index: int, value: Any) -> MatrixCell:
    # a list has no short name; its place among the values has
    label = str(index) if isinstance(value, list) else str(value).lower()
    return MatrixCell(f".{key}-{label}", {key: value})
