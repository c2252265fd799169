"""A run's stored record without its requests, as one JSON document.

The document follows the schema `results` and adds no conclusions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from audit.store import Attachment, Store, StoredCheck, StoredCoverage, StoredDecision, StoredRun
from audit.store.canonical import jsonable
from audit.text.documents import mistake
from audit.text.staged_files import staged

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Results:
    """One run with its verdicts, gate decisions and attachments."""

    format: int
    run: StoredRun
    checks: tuple[StoredCheck, ...]
    coverage: tuple[StoredCoverage, ...]
    decisions: tuple[StoredDecision, ...]
    attachments: tuple[Attachment, ...]


def results(store: Store, run: str) -> Results:
    """Read a run's results."""
    checks, coverage = store.checks(run), store.coverage(run)
    return Results(FORMAT, store.load_run(run), checks, coverage, store.decisions(run), store.attachments(run))


def write_results(found: Results, path: Path) -> None:
    """Write the document atomically.

    Raises:
        UserError: the file cannot be written.
    """
    text = json.dumps(jsonable(found), indent=2, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise mistake(str(path), None, f"cannot be written ({error.strerror}); choose another place") from error
    with staged({path: text.encode()}):
        pass
