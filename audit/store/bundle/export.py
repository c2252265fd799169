"""A finished run as a bundle."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store.bundle.archive import LOG, part_name, writing
from audit.store.bundle.inclusion import inclusion_of
from audit.store.bundle.rows import RunRows
from audit.store.bundle.tables import encoded
from audit.store.tables.runs import REVISION, RunRow


def write_bundle(session: Session, run: RunRow, path: Path) -> None:
    """Write all rows of a finished run to a zip file; equal rows and checkpoints give equal bytes.

    Raises:
        UserError: the run is not finished, or the file cannot be written.
        CannotDecide: a row is not as it was logged.
    """
    if run.record_root is None:
        raise UserError(f"run {run.ulid} is {run.status}; only a finished run has a record root and can be exported")
    rows = RunRows(session, run.id)
    with writing(path) as writer:
        for table in rows.tables:
            writer.part(part_name(table.name), (encoded(table, row) for row in rows.of(table)))
        proven = inclusion_of(session, run)
        if proven is not None:
            writer.part(LOG, (proven,))
        writer.manifest(run.ulid, run.record_root, REVISION)
