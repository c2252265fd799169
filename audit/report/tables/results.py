"""A run's stored record without its requests, as one JSON document.

The document follows the schema `results` and adds no conclusions.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.attest.statement import REVIEW, WAIVER
from audit.report.tables.acceptance import ArmEstimates, run_estimates
from audit.store import Attachment, Store, StoredCheck, StoredCoverage, StoredDecision, StoredRun
from audit.store.base.canonical import jsonable
from audit.store.reading.attestations import StoredAttestation
from audit.text.staged_files import require_writable, unwritable, write_staged

FORMAT = 3


@dataclass(frozen=True, slots=True)
class SignedEntry:
    """A waiver or a review with what it states, signed by the key that it names."""

    id: str
    kind: str
    stated: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """One run with its verdicts, gate decisions and attachments, and what people signed about it."""

    format: int
    run: StoredRun
    checks: tuple[StoredCheck, ...]
    coverage: tuple[StoredCoverage, ...]
    decisions: tuple[StoredDecision, ...]
    attachments: tuple[Attachment, ...]
    signed: tuple[SignedEntry, ...]
    estimates: tuple[ArmEstimates, ...]


def results(store: Store, run: str) -> Results:
    """Read a run's results."""
    result = store.load_run(run)
    return Results(
        FORMAT,
        result,
        store.checks(run),
        store.coverage(run),
        store.decisions(run),
        store.attachments(run),
        tuple(_signed(store.attestations.of_run(run, (WAIVER, REVIEW)))),
        run_estimates(store, result),
    )


def _signed(rows: Sequence[StoredAttestation]) -> Iterator[SignedEntry]:
    if not rows:
        return
    # imported late: few runs have a waiver, and verifying signatures takes a library
    from audit.attest.waivers import review_statement, stated, waiver_statement

    known = stated(rows)
    yield from (SignedEntry(waiver.id, "waiver", waiver_statement(waiver).predicate) for waiver in known.waivers)
    yield from (SignedEntry(review.id, "review", review_statement(review).predicate) for review in known.reviews)


def write_results(result: Results, path: Path) -> None:
    """Write the document atomically. Raises UserError: the file cannot be written."""
    text = json.dumps(jsonable(result), indent=2, allow_nan=False) + "\n"
    _make_folder(path)
    write_staged({path: text.encode()})


def require_place(path: Path) -> None:
    """Make sure that `write_results` can write here, before a run that ends with it.

    Raises:
        UserError: the file or its folder cannot be written.
    """
    _make_folder(path)
    require_writable(path)


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error
