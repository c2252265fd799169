"""The part of a bundle that proves its rows to be in the log of the store that wrote it, at its last checkpoint.

The part is a proof as `audit.store.ledger.proof` makes it, with more kinds of rows. Its rows have the keys of that
store, those of the bundle are numbered from 1 in the same order, so keys are compared by rank. Cannot see: rows other
than signed statements that the log holds and both the proof and the bundle leave out.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import JSON, Table, select
from sqlalchemy.orm import Session

from audit.errors import CannotDecide, UserError
from audit.store.base.canonical import to_json
from audit.store.base.keys import PublicKey
from audit.store.bundle.tables import RUN, encoded, kind_of, parents
from audit.store.ledger import notes, proof, statement_list
from audit.store.ledger.coverage import COVERED
from audit.store.ledger.entries import STATE
from audit.store.ledger.notes import TreeHead
from audit.store.ledger.proof import ProvenRow
from audit.store.tables.runs import Base, RunRow
from audit.store.tables.verdicts import AttestationRow

MANY: Final = frozenset({"request", "erasure"})
"""Tables with a row per request: the record root, which the run's last state has, covers them."""
ATTESTATION: Final = AttestationRow.__tablename__
STATEMENTS: Final = "statements"
KINDS: Final = tuple(name for name, item in COVERED.items() if "run_id" in item.columns and name not in MANY)
"""Tables whose rows of the run are proven, besides the run itself and its last state."""


@dataclass(frozen=True, slots=True)
class BundleInclusion:
    """Proof of the log: the checkpoint with its note, its signer's name, if somebody verified it, and rows by table.

    proven: rows that the checkpoint covers. later: rows of the bundle that it does not cover.
    broken: why rows of the checkpoint are not those of the bundle; empty if they are.
    """

    head: TreeHead
    note: str
    signer: str
    verified: bool
    proven: Mapping[str, int]
    later: Mapping[str, int]
    broken: tuple[str, ...]


def inclusion_of(session: Session, run: RunRow) -> dict[str, Any] | None:
    """The proof of a run's rows; None if no checkpoint covers the run's ending.

    Raises:
        CannotDecide: a row is not as it was logged.
    """
    checkpoint = proof.newest_checkpoint(session)
    if checkpoint is None:
        return None
    document = proof.document_of(session, run, checkpoint, KINDS)
    ending = {json.loads(entry["data"])[0] for entry in document["entries"]}
    if not {RUN, STATE} <= ending:
        return None
    stated, listed = (
        notes.claimed(checkpoint.note, "checkpoint").statements,
        statement_list.listed(session, checkpoint.size),
    )
    if stated is not None and statement_list.digest(listed) != stated.sha256:
        raise CannotDecide("the store's signed statements are not those of its last checkpoint; run: audit db check")
    return {**document, STATEMENTS: listed}


def compared(session: Session, run: RunRow, document: Any, key: PublicKey | None, place: str) -> BundleInclusion:
    """The rows of a bundle beside those that its proof shows.

    Raises:
        UserError: not a proof, or it does not hold; the message says where.
    """
    note = proof.note_of(document, place)
    proven = proof.verify(document, key, place)
    rows: dict[str, list[ProvenRow]] = {}
    for row in proven.rows:
        rows.setdefault(row.kind, []).append(row)
    broken, later = [], {}
    ranks = {name: _ranks(result) for name, result in rows.items()}
    if not rows.keys() <= {RUN, STATE, *KINDS}:
        raise UserError(f"{place}: a proof of rows that no bundle has")
    for name in (RUN, *KINDS):
        table = Base.metadata.tables[name]
        theirs = Counter(_text(table, _proven_values(table, row), ranks) for row in rows.get(name, ()))
        ours = Counter(_text(table, values, None) for values in _bundle_values(session, table, run))
        broken += [f"{name}: the checkpoint covers another row: {text[:100]}" for text in (theirs - ours)]
        later[name] = (ours - theirs).total()
    (state,) = rows[STATE]
    if (state.values["record_root"], state.values["status"]) != (run.record_root, run.status):
        broken.append("run: its record root or status is not that of the log")
    broken += _left_out(document, proven.head, run.ulid, rows)
    counts = {name: len(result) for name, result in rows.items()}
    return BundleInclusion(proven.head, note, note.partition("\n")[0], key is not None, counts, later, tuple(broken))


def _left_out(document: Any, head: TreeHead, ulid: str, rows: Mapping[str, Sequence[ProvenRow]]) -> list[str]:
    """The statements of the run that the checkpoint lists, and that the bundle lacks."""
    listed = document.get(STATEMENTS)
    if head.statements is None:
        return []
    if not isinstance(listed, list) or not all(isinstance(line, str) for line in listed):
        return [f"{ATTESTATION}: the list of signed statements is missing"]
    if statement_list.digest(listed) != head.statements.sha256:
        return [f"{ATTESTATION}: the list of signed statements is not that of the checkpoint"]
    payloads = [row.values["payload_sha256"] for row in rows.get(ATTESTATION, ())]
    lost = statement_list.left_out(listed, ulid, payloads)
    return [f"{ATTESTATION}: the checkpoint lists a signed statement that was left out: {name}" for name in lost]


def _ranks(rows: Sequence[ProvenRow]) -> dict[int, int]:
    """Ranks of the keys, from 1; empty for rows without a key of their own."""
    return {key: rank for rank, key in enumerate(sorted(row.values["id"] for row in rows if "id" in row.values), 1)}


def _bundle_values(session: Session, table: Table, run: RunRow) -> Iterator[dict[str, Any]]:
    mine = table.c.id == run.id if table.name == RUN else table.c.run_id == run.id
    for row in session.execute(select(table).where(mine)):
        values = encoded(table, dict(row._mapping))
        yield {name: values[name] for name in COVERED[table.name].columns}


def _proven_values(table: Table, row: ProvenRow) -> dict[str, Any]:
    return {name: _value(table, name, value) for name, value in row.values.items()}


def _value(table: Table, name: str, value: Any) -> Any:
    """Converts a log value from the database's form to the bundle's."""
    kind = kind_of(table.c[name])
    if value is None:
        return None
    if isinstance(table.c[name].type, JSON):
        return json.loads(value)
    if kind is datetime:
        return datetime.fromisoformat(value).replace(tzinfo=UTC).isoformat()
    if kind is bool:
        return bool(value)
    return float(value) if kind is float else value


def _text(table: Table, values: Mapping[str, Any], ranks: Mapping[str, Mapping[int, int]] | None) -> str:
    """A row without what depends on its store: keys by rank, and none of rows that runs share."""
    kept = dict(values)
    for name, parent in {**parents(table), **({"id": table.name} if "id" in values else {})}.items():
        if name not in kept or kept[name] is None:
            continue
        if parent not in (RUN, *KINDS):
            kept.pop(name)
        elif ranks is not None:
            kept[name] = ranks.get(parent, {}).get(kept[name])
    return to_json(kept)
