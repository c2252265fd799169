"""Random numbers that a record does not store, because its header says their keys.

Only numbers equal to the last bit to those of the keys are left out: an engine that drew others has them on record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats, Protocol, QKind, Role
from engine.record.columns import BY_NAME, COUNTED, KEYED, numbered
from engine.sampling.rng import Purpose, uniforms_at

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Draws:
    """[n] the keys of a column's numbers; `purpose` is -1 where nothing is drawn."""

    position: Ints
    purpose: Ints
    begin: Ints


def numbers_of(
    names: Sequence[str], columns: Mapping[str, NDArray[Any]], seed: int, stream: int, protocol: Protocol
) -> dict[str, Floats]:
    """The columns that an engine records which draws with the keys on chains; NaN where nothing is drawn.

    Args:
        names: some of `KEYED`.
        columns: the other columns, counts that fit included.
        seed: of the sampling parameters.
        stream: the request's stream.
        protocol: under the block rule each step has its own numbers.

    Raises:
        ValueError: the counts do not fit the columns.
    """
    if not names:
        return {}
    # one call for all columns: its cost hardly depends on their length
    draws = [_draws(name, columns) for name in names]
    position, purpose, begin = (
        np.concatenate([getattr(draw, field) for draw in draws]) for field in ("position", "purpose", "begin")
    )
    steps = begin if protocol is Protocol.BLOCK else None
    numbers = uniforms_at(seed, stream, position, purpose, steps=steps)
    ends = np.cumsum([len(draw.position) for draw in draws])
    return dict(zip(names, np.split(numbers, ends[:-1]), strict=True))


def _draws(name: str, columns: Mapping[str, NDArray[Any]]) -> _Draws:
    entries = numbered(columns[COUNTED[BY_NAME[name].per]])
    begin = columns["position"].astype(np.int64)[entries.step]
    return _Draws(begin + entries.local, _purposes(name, columns, entries.step), begin)


def _purposes(name: str, columns: Mapping[str, NDArray[Any]], step: Ints) -> Ints:
    """[n] the purpose of each number, -1 where there is none."""
    if name == "examined_uniform":
        return np.full(len(step), int(Purpose.ACCEPT))
    if name == "node_uniform":
        return np.where(columns["q_kind"][step] == QKind.FULL, int(Purpose.DRAFT), -1)
    role = columns["role"]
    if len(role) != len(step):
        raise ValueError("the counts do not fit the roles")
    kept = np.where(role == Role.ACCEPTED, -1, int(Purpose.BONUS))
    return np.where(role == Role.RECOVERED, int(Purpose.RESIDUAL), kept)


def without_keyed(columns: Mapping[str, NDArray[Any]], seed: int, stream: int, protocol: Protocol) -> tuple[str, ...]:
    """The columns that `numbers_of` gives bit for bit."""
    return tuple(name for name in KEYED if len(columns[name]) and _given(name, columns, seed, stream, protocol))


def _given(name: str, columns: Mapping[str, NDArray[Any]], seed: int, stream: int, protocol: Protocol) -> bool:
    column = columns[name]
    if np.isnan(column).all() or column.dtype != np.float64:
        return False
    try:
        numbers = numbers_of((name,), columns, seed, stream, protocol)[name]
    except (ValueError, LookupError, TypeError):
        return False
    return numbers.shape == column.shape and numbers.tobytes() == column.tobytes()
