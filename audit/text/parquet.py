"""Rows as an Apache Parquet file, through pyarrow, which only the extra `specaudit[parquet]` installs.

Types come from the values of a column, because SQLite's columns have none: whole numbers, fractions, booleans, text,
bytes and moments (UTC, microseconds) keep theirs. Text that is a moment as SQLite keeps it becomes one if all of its
column is. A column of several types becomes text, a column of NULLs too. A whole number beyond 64 bits makes its column
text.
"""

import io
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from audit.errors import UserError, needs

INT64: Final = range(-(2**63), 2**63)
STORED_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")
"""A moment in a column of SQLite, in UTC."""


def parquet_bytes(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    """A Parquet file of the rows; equal rows give equal bytes with the same pyarrow.

    Names of columns are unique; a row has one value per column: None, bool, int, float, Decimal, text, bytes or an
    aware datetime.

    Raises:
        UserError: pyarrow is not installed, or two columns share a name.
    """
    for name, count in Counter(columns).items():
        if count > 1:
            raise UserError(f"{count} columns are named {name!r}; Parquet needs one name each: rename them with AS")
    with needs("parquet"):
        import pyarrow
        from pyarrow import parquet
    arrays, fields = [], []
    for index, name in enumerate(columns):
        kind, values = _typed([row[index] for row in rows])
        made = pyarrow.timestamp("us", tz="UTC") if kind == "timestamp" else getattr(pyarrow, kind)()
        arrays.append(pyarrow.array(values, type=made))
        fields.append(pyarrow.field(name, made))
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays, schema=pyarrow.schema(fields)), buffer, compression="zstd")
    return buffer.getvalue()


def _typed(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """The name of a column's type in pyarrow, and the column's values in that type."""
    result = {type(value) for value in values if value is not None}
    if result == {bool}:
        return "bool_", list(values)
    if result == {int} and all(value in INT64 for value in values if value is not None):
        return "int64", list(values)
    if result and result <= {int, float, Decimal} and result != {int}:
        return "float64", [None if value is None else float(value) for value in values]
    if result and result <= {bytes, memoryview, bytearray}:
        return "binary", [None if value is None else bytes(value) for value in values]
    if result == {datetime}:
        return "timestamp", [None if value is None else value.astimezone(UTC) for value in values]
    if result == {str}:
        moments = [None if value is None else _moment(value) for value in values]
        if all((moment is None) == (value is None) for moment, value in zip(moments, values, strict=True)):
            return "timestamp", moments
    return "string", [None if value is None else _text(value) for value in values]


def _moment(text: str) -> datetime | None:
    if not STORED_MOMENT.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:  # digits in the right places, but no date
        return None


def _text(value: Any) -> str:
    if isinstance(value, bytes | memoryview | bytearray):
        return bytes(value).hex()
    return value.isoformat() if isinstance(value, datetime) else str(value)
