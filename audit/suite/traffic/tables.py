"""Tables with named columns: CSV and Parquet."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from audit.errors import needs
from audit.suite.traffic.conversation import asked
from audit.suite.traffic.source import TrafficFile, TrafficRow, column
from audit.text.documents import decode_text
from audit.text.unsafe import quoted

DELIMITERS: Final = ",;\t"
PROMPTS: Final = ("prompt", "messages")


def csv_rows(file: TrafficFile) -> Iterator[TrafficRow]:
    """Rows of a CSV file with a header; commas, semicolons or tabs, whichever gives the named columns."""
    text = decode_text(str(file.path), file.raw)
    wanted = set(file.columns.values()) or set(PROMPTS)
    readers = [csv.DictReader(io.StringIO(text), delimiter=delimiter, strict=True) for delimiter in DELIMITERS]
    try:
        names = {id(reader): list(reader.fieldnames or ()) for reader in readers}
        best = max(readers, key=lambda reader: (len(wanted & set(names[id(reader)])), len(names[id(reader)])))
        yield from _rows(file, names[id(best)], ((best.line_num, record) for record in best))
    except csv.Error as error:
        raise file.error(None, f"no CSV: {error}") from error


def parquet_rows(file: TrafficFile) -> Iterator[TrafficRow]:
    """Rows of a Parquet file."""
    with needs("parquet"):
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    try:
        table = parquet.ParquetFile(io.BytesIO(file.raw))
        records = (record for batch in table.iter_batches() for record in batch.to_pylist())
        yield from _rows(file, table.schema_arrow.names, enumerate(records, 1))
    except (arrow.ArrowException, OSError) as error:
        raise file.error(None, f"no Parquet: {error}") from error


def _rows(
    file: TrafficFile, names: Sequence[str], records: Iterable[tuple[int, Mapping[str, Any]]]
) -> Iterator[TrafficRow]:
    keys = [key for key in PROMPTS if key in file.columns] or [key for key in PROMPTS if key in names]
    if len(keys) != 1:
        there = ", ".join(map(quoted, names))
        raise file.error(1, f"name the column of the prompts, such as columns: {{prompt: NAME}}; there: {there}")
    (key,) = keys
    for number, record in records:
        value = column(file, number, record, key) if key in file.columns else record[key]
        yield TrafficRow(number, {key: _prompt(file, number, key, value)}, record)


def _prompt(file: TrafficFile, number: int, key: str, value: Any) -> Any:
    if key == "prompt":
        if not isinstance(value, str) or not value:
            raise file.error(number, f"the prompt is {quoted(str(value))} and no text")
        return value
    try:
        return asked(json.loads(value) if isinstance(value, str) else value)
    except ValueError as error:
        raise file.error(number, f"column of messages: {error}") from error
