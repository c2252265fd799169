"""Signed checkpoints of the log: their rows, the log compared with them, and their form as C2SP notes.

A note is a `tlog-checkpoint` inside a `signed-note`:

    ORIGIN
    SIZE
    BASE64 OF THE ROOT
    statements MOMENT BASE64

    — NAME BASE64 OF KEY ID AND SIGNATURE

The origin is the name of the key. Signatures of other keys are ignored. The fourth line is an extension, of
`audit.store.ledger.statement_list`.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store.base.keys import PrivateKey, PublicKey, from_base64
from audit.store.ledger import log, log_scan, statement_list
from audit.store.ledger.log_scan import Scan
from audit.store.ledger.statement_list import StatementDigest
from audit.store.tables.log import CheckpointRow


@dataclass(frozen=True, slots=True)
class TreeHead:
    """Size and root of the log, and the digest of its statements; None in notes of earlier versions."""

    size: int
    root: bytes
    statements: StatementDigest | None = None


def known(session: Session) -> tuple[TreeHead, ...]:
    """The checkpoints that the store has, oldest first."""
    rows = session.execute(select(CheckpointRow.size, CheckpointRow.root).order_by(CheckpointRow.id))
    return tuple(TreeHead(size, bytes.fromhex(root)) for size, root in rows)


def head(session: Session) -> TreeHead:
    """The log as it is now."""
    size = log.size_of(session)
    stated = StatementDigest(datetime.now(UTC), statement_list.digest(statement_list.listed(session, size)))
    return TreeHead(size, log.root_of(log.frontier_of(session, size)), stated)


def add(session: Session, sign: Callable[[TreeHead], str]) -> TreeHead:
    """Sign the log as it is now and record the note; `sign` may refuse by raising."""
    now = head(session)
    row = CheckpointRow(size=now.size, root=now.root.hex(), note=sign(now), created_at=datetime.now(UTC))
    session.add(row)
    return now


def compare(session: Session, known_heads: Sequence[TreeHead]) -> Iterator[str]:
    """Why the log does not continue that of a checkpoint, one line for each that it does not."""
    yield from uncontinued(log_scan.scan(session, frozenset(head.size for head in known_heads)), known_heads)


def uncontinued(scanned: Scan, known_heads: Sequence[TreeHead]) -> Iterator[str]:
    """The lines of `compare` for a scan that has the roots at the checkpoints' sizes."""
    for old in known_heads:
        if old.size > scanned.size:
            yield (
                f"the log has {scanned.size} entries, the checkpoint {old.size}: entries were cut off, or an older "
                "copy of the store was put in place"
            )
        elif scanned.roots.get(old.size) != old.root:
            yield f"the first {old.size} entries are not those of the checkpoint: the log was rewritten"


DASH: Final = "\u2014 "


def signed(head: TreeHead, key: PrivateKey) -> str:
    """The signed note of a tree head."""
    more = "" if head.statements is None else f"{head.statements.line}\n"
    body = f"{key.name}\n{head.size}\n{base64.b64encode(head.root).decode()}\n{more}"
    signature = key.public.id + key.sign(body.encode())
    return f"{body}\n{DASH}{key.name} {base64.b64encode(signature).decode()}\n"


def opened(note: str, key: PublicKey, place: str) -> TreeHead:
    """The tree head of a note that the key signed. Raises UserError: not a checkpoint, or not signed by the key."""
    body, separator, signatures = note.partition("\n\n")
    lines = _lines(body, place, complete=bool(separator))
    message = (body + "\n").encode()
    if not any(_signs(line, key, message) for line in signatures.split("\n")):
        raise UserError(f"{place}: not signed by the key {key.name} ({key.id.hex()})")
    return _head(lines, place)


def claimed(note: str, place: str) -> TreeHead:
    """The head in a note, whoever signed it; its name is the note's first line. Raises UserError: not a checkpoint."""
    body, separator, _ = note.partition("\n\n")
    lines = _lines(body, place, complete=bool(separator))
    return _head(lines, place)


def _lines(body: str, place: str, *, complete: bool) -> list[str]:
    lines = body.split("\n")
    if not complete or len(lines) < 3:
        raise UserError(f"{place}: not a signed checkpoint")
    return lines


def _signs(line: str, key: PublicKey, message: bytes) -> bool:
    name, _, encoded = line.removeprefix(DASH).partition(" ")
    raw = from_base64(encoded)
    named = line.startswith(DASH) and name == key.name and raw[:4] == key.id
    return named and key.verifies(raw[4:], message)


def _head(lines: list[str], place: str) -> TreeHead:
    size, root = lines[1], from_base64(lines[2])
    if not (size.isascii() and size.isdigit() and len(root) == 32):
        raise UserError(f"{place}: not a checkpoint: its size or root cannot be read")
    return TreeHead(int(size), root, next(filter(None, map(statement_list.read_line, lines[3:])), None))
