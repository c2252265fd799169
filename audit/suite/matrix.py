"""Expands one arm of a suite to a matrix of arms: sampling parameters varied alone and in pairs.

For engines that may not honour every sampling parameter under speculation.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

MOST_CELLS: Final = 1000
"""Arms of one matrix."""


def cells(vary: Mapping[str, Sequence[Any]], *, pairs: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The suffix of each arm's name and the parameters that it sets: none, each parameter's values alone and, with
    `pairs`, all pairs of values of two parameters.

    Values of one parameter are never combined, and the order is that of the mapping.
    """
    yield "", {}
    single = {key: [_cell(key, index, value) for index, value in enumerate(values)] for key, values in vary.items()}
    for result in single.values():
        yield from result
    for first, second in combinations(single, 2) if pairs else ():
        yield from (
            (one + two, {**sampling, **other}) for one, sampling in single[first] for two, other in single[second]
        )


def cell_count(vary: Mapping[str, Sequence[Any]], *, pairs: bool) -> int:
    """The number of `cells`, without making them."""
    sizes = [len(values) for values in vary.values()]
    return 1 + sum(sizes) + (sum(one * two for one, two in combinations(sizes, 2)) if pairs else 0)


def _cell(key: str, index: int, value: Any) -> tuple[str, Mapping[str, Any]]:
    # a list has no short name, so its index names it
    label = str(index) if isinstance(value, list) else str(value).lower()
    return f".{key}-{label}", {key: value}
