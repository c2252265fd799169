"""Random numbers that a record does not store, because its header says their keys.

Only numbers equal to the last bit to those of the keys are left out: an engine that drew others has them on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats, Protocol, QKind, Role
from engine.sampling.rng import Purpose, uniforms_at

KEYED: Final = ("node_uniform", "examined_uniform", "uniform")
Ints = NDArray[np.int64]


def numbers_of(name: str, columns: Mapping[str, NDArray[Any]], seed: int, stream: int, protocol: Protocol) -> Floats:
    """The column that an engine records which draws with the keys on chains; NaN where nothing is drawn.

    Args:
        name: one of `KEYED`.
        columns: the other columns, counts that fit included.
        seed: of the sampling parameters.
        stream: the request's stream.
        protocol: under the block rule each step has its own numbers.

    Raises:
        ValueError: the counts do not fit the columns.
    """
    counts = columns[{"node_uniform": "n_drafted", "examined_uniform": "n_examined", "uniform": "n_emitted"}[name]]
    step = np.repeat(np.arange(len(counts)), counts)
    local = np.arange(len(step)) - (np.cumsum(counts, dtype=np.int64) - counts)[step]
    begin = columns["position"].astype(np.int64)[step]
    purposes = _purposes(name, columns, step)
    drawn = purposes >= 0
    steps = begin if protocol is Protocol.BLOCK else None
    keys = uniforms_at(seed, stream, begin + local, np.maximum(purposes, 0), steps=steps)
    return np.where(drawn, keys, np.nan)


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
        numbers = numbers_of(name, columns, seed, stream, protocol)
    except (ValueError, LookupError):
        return False
    return numbers.tobytes() == column.tobytes()
