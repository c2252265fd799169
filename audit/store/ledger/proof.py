"""Inclusion proofs: that a run's ending and verdicts are entries of the log of a signed checkpoint.

A proof is a JSON document that needs no store: the checkpoint's note, and per entry the bytes that it hashes and the
sibling hashes up to the root (RFC 6962, section 2.1.1). It shows that the log held these entries, not that they are the
last ones of the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.errors import CannotDecide, UserError
from audit.store.base.keys import PublicKey
from audit.store.base.merkle import leaf_hash, levels, node_hash
from audit.store.ledger import entries, log_scan, notes
from audit.store.ledger.coverage import COVERED
from audit.store.ledger.entries import KINDS, STATE, RowEntry
from audit.store.ledger.notes import TreeHead
from audit.store.tables.log import CheckpointRow
from audit.store.tables.runs import ArtifactRow, Base, RunRow
from audit.store.tables.verdicts import RegistrationRow

VERSION: Final = 1
REGISTERED: Final = 2
"""Version of a proof that holds registrations of the run's suite too."""
REGISTRATION: Final = "registration"
SIGN: Final = "audit db checkpoint --key KEY --out FILE"
"""The command that signs a checkpoint, as messages tell it."""


@dataclass(frozen=True, slots=True)
class ProvenRun:
    """A run by its proof: `rows` are the proven rows by kind and column."""

    head: TreeHead
    rows: tuple[ProvenRow, ...]


@dataclass(frozen=True, slots=True)
class ProvenRow:
    """One proven row, and its place in the log."""

    kind: str
    values: dict[str, Any]
    entry: int


def prove(session: Session, run: RunRow) -> dict[str, Any]:
    """The proof of a run's row, last state and results in the newest checkpoint.

    Raises:
        UserError: no checkpoint covers them.
        CannotDecide: a row is not as it was logged.
    """
    checkpoint = newest_checkpoint(session)
    if checkpoint is None:
        raise UserError(f"the store has no checkpoint; sign one: {SIGN}")
    document = document_of(session, run, checkpoint, ("check_result", REGISTRATION))
    proven = [json.loads(entry["data"])[0] for entry in document["entries"]]
    if len(proven) - proven.count(REGISTRATION) < len(_wanted(session, run, ("check_result",))):
        raise UserError(f"run {run.ulid} is newer than the last checkpoint; run: {SIGN}")
    return document


def newest_checkpoint(session: Session) -> CheckpointRow | None:
    """The last checkpoint on record."""
    return session.scalars(select(CheckpointRow).order_by(CheckpointRow.id.desc()).limit(1)).one_or_none()


def document_of(session: Session, run: RunRow, checkpoint: CheckpointRow, kinds: Sequence[str]) -> dict[str, Any]:
    """The proof of those rows of a run that a checkpoint covers: its own, its last state, and those of `kinds`.

    Raises:
        CannotDecide: a row is not as it was logged.
    """
    tree = levels(log_scan.leaves(session, checkpoint.size))
    if tree[-1][0].hex() != checkpoint.root:
        raise CannotDecide("the log is not that of its last checkpoint; run: audit db check")
    scanned = log_scan.scan(session)
    proven = []
    every = _wanted(session, run, kinds)
    for wanted in every:
        seq = scanned.logged.get(wanted.kind, {}).get(wanted.ref)
        if seq is None or scanned.leaves[seq] != leaf_hash(wanted.data):
            raise CannotDecide(f"{wanted.kind} {wanted.ref} is not as it was logged; run: audit db check")
        if seq >= checkpoint.size:
            continue
        path = [node.hex() for node in inclusion(tree, seq)]
        proven.append({"seq": seq, "data": wanted.data.decode("ascii"), "path": path})
    version = REGISTERED if REGISTRATION in {wanted.kind for wanted in every} else VERSION
    return {"version": version, "run": run.ulid, "checkpoint": checkpoint.note, "entries": proven}


def _wanted(session: Session, run: RunRow, kinds: Sequence[str]) -> list[RowEntry]:
    places = {"run": [run.id], STATE: [run.id], **{kind: _keys(session, run, kind) for kind in kinds}}
    return [row for kind, keys in places.items() for row in entries.rows(session, kind, keys)]


def _keys(session: Session, run: RunRow, kind: str) -> list[int]:
    """First keys of a run's rows of a table, or of the registrations of its suite."""
    if kind == REGISTRATION:
        suite = session.get_one(ArtifactRow, run.suite_artifact_id)
        return list(session.scalars(select(RegistrationRow.id).where(RegistrationRow.suite_sha256 == suite.sha256)))
    table = Base.metadata.tables[kind]
    key = table.c[COVERED[kind].columns[0]]
    return list(session.scalars(select(key).where(table.c.run_id == run.id)))


def inclusion(tree: Sequence[Sequence[bytes]], seq: int) -> list[bytes]:
    """The sibling hashes of an entry, lowest first."""
    path = []
    for level in tree[:-1]:
        if seq ^ 1 < len(level):
            path.append(level[seq ^ 1])
        seq >>= 1
    return path


def root_from(leaf: bytes, seq: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """The root that a path leads to; None if the path does not fit the place (RFC 9162, section 2.1.3.2)."""
    last, node = size - 1, leaf
    if not 0 <= seq <= last:
        return None
    for sibling in path:
        if last == 0:
            return None
        if seq & 1 or seq == last:
            node = node_hash(sibling, node)
            while seq and not seq & 1:
                seq, last = seq >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        seq, last = seq >> 1, last >> 1
    return node if last == 0 else None


def verify(document: Any, key: PublicKey | None, place: str) -> ProvenRun:
    """Verifies a proof without a store; without a key, the checkpoint may be signed by anyone.

    Raises:
        UserError: not a proof, or it does not hold; the message says where.
    """
    try:
        note, ulid, proven = document["checkpoint"], document["run"], document["entries"]
        if document["version"] not in (VERSION, REGISTERED):
            raise UserError(f"{place}: a proof of another version; install a newer specaudit")
        head = notes.claimed(note, place) if key is None else notes.opened(note, key, place)
        rows = tuple(_row(entry, head, place) for entry in proven)
    except (KeyError, TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
        raise UserError(f"{place}: not a proof of audit db prove") from error
    runs = [row.values["id"] for row in rows if row.kind == "run" and row.values["ulid"] == ulid]
    states = [row for row in rows if row.kind == STATE]
    owned = [row for row in rows if row.kind != REGISTRATION]
    ids = {row.values["id"] if row.kind in {"run", STATE} else row.values["run_id"] for row in owned}
    if len(runs) != 1 or len(states) != 1 or ids != {*runs}:
        raise UserError(f"{place}: its entries are not those of run {ulid}")
    return ProvenRun(head, rows)


def note_of(document: Any, place: str) -> str:
    """The checkpoint's note in a proof. Raises UserError: not a proof."""
    note = document.get("checkpoint") if isinstance(document, dict) else None
    if not isinstance(note, str):
        raise UserError(f"{place}: not a proof of audit db prove")
    return note


def _row(entry: Any, head: TreeHead, place: str) -> ProvenRow:
    data, path = entry["data"].encode("ascii"), [bytes.fromhex(node) for node in entry["path"]]
    if root_from(leaf_hash(data), int(entry["seq"]), head.size, path) != head.root:
        raise UserError(f"{place}: entry {entry['seq']} is not in the log of the checkpoint")
    kind, *values = json.loads(data)
    columns = KINDS[kind].columns
    padded = [*values, *[None] * (len(columns) - len(values))]
    return ProvenRow(kind, dict(zip(columns, padded, strict=True)), int(entry["seq"]))
