"""A run as a folder of Parquet files, one per table and view, for DuckDB, pandas and whatever reads Parquet.

Tables have the rows and the keys of a bundle, views the rows of the run; views over all runs are left out. JSON values
are text. For analysis: nothing verifies or imports the folder, a bundle does both. Each file is made in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import JSON, inspect, text
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store.base.canonical import to_json
from audit.store.base.connection import open_readonly, parse_url
from audit.store.bundle.tables import RunRows
from audit.store.tables.runs import find_run
from audit.text.parquet import parquet_bytes
from audit.text.staged_files import new_folder

RUN: Final = "run"
"""Column of the views that have rows of single runs."""


def export_folder(url: str, ulid: str, folder: Path) -> tuple[str, ...]:
    """Write a run of a store to a new folder, which appears when it is complete; returns the names of its files.

    Raises:
        UserError: the folder exists or cannot be written, or pyarrow is not installed.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already; name a new folder")
    engine = open_readonly(parse_url(url))
    try:
        with new_folder(folder) as place, Session(engine) as session:
            return tuple(_written(session, ulid, place))
    finally:
        engine.dispose()


def _written(session: Session, ulid: str, folder: Path) -> Iterator[str]:
    rows = RunRows(session, find_run(session, ulid).id)
    for table in rows.tables:
        jsons = {column.name for column in table.columns if isinstance(column.type, JSON)}
        columns = table.columns.keys()
        values = [[_plain(row[name], as_json=name in jsons) for name in columns] for row in rows.of(table)]
        yield _file(folder, table.name, columns, values)
    result = inspect(session.connection())
    for view in sorted(result.get_view_names()):
        columns = [column["name"] for column in result.get_columns(view)]
        if RUN in columns:
            query = text(f"SELECT {', '.join(columns)} FROM {view} WHERE {RUN} = :ulid")
            listed = [[_plain(value) for value in row] for row in session.execute(query, {"ulid": ulid})]
            yield _file(folder, view, columns, listed)


def _file(folder: Path, name: str, columns: list[str], rows: list[list[Any]]) -> str:
    path = folder / f"{name}.parquet"
    path.write_bytes(parquet_bytes(columns, rows))
    return path.name


def _plain(value: Any, *, as_json: bool = False) -> Any:
    if value is not None and (as_json or isinstance(value, dict | list)):
        return to_json(value)
    return value
