"""The cells of many lumped rows beside whole rows of the same laws, as arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats
from engine.record.rows.lumping import PAD


@dataclass(frozen=True, slots=True)
class CellsBesideRows:
    """Cells [n, k] of n rows: which are used, which name a token of the vocabulary, and the rows' values there.

    held: 0 where a cell is unused; meaningless where it names no token. twice: [n] a token has two cells.
    """

    used: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    held: Floats
    twice: NDArray[np.bool_]


def cells_beside(ids: NDArray[np.int64], rows: Floats) -> CellsBesideRows:
    """Compare the tokens `ids` [n, k] of cells with whole rows [n, V]; PAD marks an unused cell."""
    used, inside = ids != PAD, ids < rows.shape[1]
    held = np.where(used, np.take_along_axis(rows, np.where(used & inside, ids, 0), axis=1), 0.0)
    ordered = np.sort(ids, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != PAD)).any(axis=1)
    return CellsBesideRows(used, inside, held, twice)
