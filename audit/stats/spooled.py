"""Columns of numbers that grow by the token and lie on disk if they are long, with numpy's sums bit for bit.

`numpy.sum` adds in pairs: it halves a row of numbers, down to blocks of at most 128. Where it halves depends on the
length alone, so once a column is complete its sum can be taken in one pass over the file, a block at a time. Memory:
about `IN_MEMORY` bytes per column, and one block of each.
"""

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats

IN_MEMORY: Final = 2**20
"""Bytes of a column that wait in memory; they go to a temporary file together, because a write costs as much as a row.
"""
ROWS: Final = 2**16
"""Rows that are read at once."""
Block = Mapping[str, NDArray[Any]]
Mask = Callable[[Block], NDArray[np.bool_]]
Terms = Callable[[Block], Sequence[Floats]]


def every_row(block: Block) -> NDArray[np.bool_]:
    """The mask of all rows."""
    return np.ones(len(next(iter(block.values()))), np.bool_)


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """How many rows were added, and the sum of each term."""

    n: int
    totals: tuple[float, ...]


class _SpooledBytes:
    """Bytes that are added at the end and read from the start."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._file: IO[bytes] | None = None

    def append(self, content: bytes) -> None:
        """Add bytes."""
        self._waiting += content
        if len(self._waiting) >= IN_MEMORY:
            self._write()

    def read(self) -> IO[bytes]:
        """All of them, at the start."""
        if self._file is None:
            return io.BytesIO(self._waiting)
        self._write()
        self._file.seek(0)
        return self._file

    def _write(self) -> None:
        if self._file is None:
            # unnamed: it is gone with the process, whatever ends that
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._file.seek(0, io.SEEK_END)
        self._file.write(self._waiting)
        self._waiting.clear()

    def close(self) -> None:
        """Give up the file."""
        if self._file is not None:
            self._file.close()


class SpooledColumns:
    """Columns of equal length.

    Args:
        types: the columns' names and types.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = {name: np.dtype(kind) for name, kind in types.items()}
        self._files = {name: _SpooledBytes() for name in types}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def __del__(self) -> None:
        self.close()

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows, of every column as many."""
        counts = {len(column) for column in columns.values()}
        if counts != {len(next(iter(columns.values())))} or set(columns) != set(self._files):
            raise ValueError(f"columns of {sorted(counts)} rows: {sorted(columns)}, not {sorted(self._files)}")
        for name, file in self._files.items():
            file.append(np.ascontiguousarray(columns[name], self._types[name]).tobytes())
        self._rows += counts.pop()

    def blocks(self, names: Sequence[str]) -> Iterator[Block]:
        """The rows in order, at least one block; no row may be added while they are read."""
        files = {name: self._files[name].read() for name in names}
        for _ in range(0, max(1, self._rows), ROWS):
            sizes = {name: ROWS * self._types[name].itemsize for name in names}
            yield {name: np.frombuffer(file.read(sizes[name]), self._types[name]) for name, file in files.items()}

    def chosen(self, names: Sequence[str], mask: Mask) -> Iterator[Block]:
        """The rows in order which a mask keeps."""
        for block in self.blocks(names):
            rows = mask(block)
            yield {name: column[rows] for name, column in block.items()}

    def count(self, names: Sequence[str], mask: Mask) -> int:
        """How many rows a mask keeps, given the columns that it reads."""
        return sum(int(np.count_nonzero(mask(block))) for block in self.blocks(names))

    def sums(self, names: Sequence[str], terms: Terms, mask: Mask = every_row, by: Sequence[str] = ()) -> ColumnSums:
        """`numpy.sum` of each term over the rows that a mask keeps.

        Args:
            names: the columns that `terms` reads.
            terms: the numbers [n] of every term, from the columns [n] of some rows.
            mask: keeps rows.
            by: the columns that `mask` reads.
        """
        n = self.count(by, mask) if by else self._rows
        listed = list(dict.fromkeys((*names, *by)))
        reader = _TermReader(map(terms, self.chosen(listed, mask) if by else self.blocks(listed)))
        return ColumnSums(n, tuple(float(total) for total in _pairwise(reader, n)))

    def close(self) -> None:
        """Give up the files."""
        for file in self._files.values():
            file.close()


class _TermReader:
    """Reads so many numbers of several terms at a time, whatever the blocks they come in."""

    def __init__(self, blocks: Iterator[Sequence[Floats]]) -> None:
        self._blocks = blocks
        self._rest: Sequence[Floats] = ()

    def take(self, count: int) -> Sequence[Floats]:
        """The next `count` numbers of each term."""
        parts = [self._rest] if self._rest else []
        have = len(self._rest[0]) if self._rest else 0
        while have < count or not parts:
            parts.append(next(self._blocks))
            have += len(parts[-1][0])
        whole = [np.concatenate(columns) if len(columns) > 1 else columns[0] for columns in zip(*parts, strict=True)]
        self._rest = [column[count:] for column in whole]
        return [column[:count] for column in whole]


def _pairwise(reader: _TermReader, n: int) -> list[np.float64]:
    """Numpy's sum of the next n numbers of each term."""
    if n <= ROWS:
        return [np.add.reduce(column) for column in reader.take(n)]
    half = n // 2
    half -= half % 8
    first = _pairwise(reader, half)
    return [one + other for one, other in zip(first, _pairwise(reader, n - half), strict=True)]
