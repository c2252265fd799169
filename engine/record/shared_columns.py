"""Values of accepted tokens that a record holds once, with the drafted token.

An accepted token is the drafted one, and its p the number that decided it. On a chain the k-th emitted token of a step
is its k-th drafted and k-th examined one. Where the bits differ, as on trees, the record holds both.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Role
from engine.record.columns import BY_NAME, COUNTED, SOURCES, entries_before, numbered

COUNTS: Final[Mapping[str, str]] = {name: COUNTED[BY_NAME[source].per] for name, source in SOURCES.items()}
"""The count of each source's values in a step."""
NEEDED: Final = frozenset(("role", "n_emitted", *SOURCES, *SOURCES.values(), *COUNTS.values()))
"""The columns that `restored` reads and writes."""
Column = NDArray[Any]


def shortened(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns that give themselves back without the values of accepted tokens, without those."""
    short = {}
    for name in SOURCES:
        kept = _shortened(name, columns)
        if kept is not None:
            short[name] = kept
    return short


def _shortened(name: str, columns: Mapping[str, Column]) -> Column | None:
    column, role = columns[name], columns["role"]
    if column.shape != role.shape or column.dtype != columns[SOURCES[name]].dtype:
        return None
    accepted = role == Role.ACCEPTED
    try:
        values = _values(name, columns, accepted)
    except (ValueError, LookupError, TypeError):
        return None
    same = len(values) and values.tobytes() == column[accepted].tobytes()
    return column[~accepted] if same else None


def restored(names: Sequence[str], columns: Mapping[str, Column]) -> dict[str, Column]:
    """The whole columns of shortened ones. Raises ValueError: the counts do not fit the columns."""
    whole = {}
    accepted = columns["role"] == Role.ACCEPTED
    for name in names:
        values, short = _values(name, columns, accepted), columns[name]
        if len(short) != len(accepted) - len(values) or short.dtype != values.dtype:
            raise ValueError(f"column {name} does not fit the roles")
        column = np.empty(len(accepted), short.dtype)
        column[accepted], column[~accepted] = values, short
        whole[name] = column
    return whole


def _values(name: str, columns: Mapping[str, Column], accepted: NDArray[np.bool_]) -> Column:
    """The values of accepted tokens by their places in the draft."""
    emitted, counts = (columns[column].astype(np.int64) for column in ("n_emitted", COUNTS[name]))
    if len(emitted) != len(counts) or (emitted < 0).any() or int(emitted.sum()) != len(accepted):
        raise ValueError("the counts do not fit the roles")
    tokens = numbered(emitted)
    step, place = tokens.step[accepted], tokens.local[accepted]
    at, source = entries_before(counts)[step] + place, columns[SOURCES[name]]
    if (place >= counts[step]).any() or (at < 0).any() or (at >= len(source)).any():
        raise ValueError("an accepted token was not drafted")
    return np.asarray(source[at])
