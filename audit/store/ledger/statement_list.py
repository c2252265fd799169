"""The signed statements of a store as each checkpoint lists them, so that a bundle cannot leave one out unseen.

A log's proofs show what is in it, and nothing that is not. The note of a checkpoint has a line more, which the key
signs with the rest: the moment, and a digest of the list of all statements with a run (waivers, reviews, decisions).

    statements MOMENT BASE64

A bundle brings the list. It names runs by the hash of their id, so that it tells a reader nothing about other runs.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import String, cast, select
from sqlalchemy.orm import Session

from audit.store.base.keys import from_base64
from audit.store.tables.log import LogEntryRow
from audit.store.tables.runs import RunRow
from audit.store.tables.verdicts import AttestationRow

WORD: Final = "statements"


@dataclass(frozen=True, slots=True)
class StatementDigest:
    """The digest of a list, and the signer's moment with a time zone."""

    at: datetime
    sha256: bytes

    @property
    def line(self) -> str:
        """The line of a note."""
        return f"{WORD} {self.at.isoformat()} {base64.b64encode(self.sha256).decode()}"


def read_line(line: str) -> StatementDigest | None:
    """The digest in a line of a note; None for another line."""
    word, _, rest = line.partition(" ")
    moment, _, encoded = rest.partition(" ")
    try:
        at, raw = datetime.fromisoformat(moment), from_base64(encoded)
    except ValueError:
        return None
    return StatementDigest(at, raw) if word == WORD and at.tzinfo is not None and len(raw) == 32 else None


def listed(session: Session, size: int) -> tuple[str, ...]:
    """The list at a size of the log: for each statement the hash of its run's id and the hash of its payload."""
    entry = (LogEntryRow.kind == AttestationRow.__tablename__) & (LogEntryRow.ref == cast(AttestationRow.id, String))
    query = select(RunRow.ulid, AttestationRow.payload_sha256).join(RunRow, RunRow.id == AttestationRow.run_id)
    known = session.execute(query.join(LogEntryRow, entry).where(LogEntryRow.seq < size))
    return tuple(sorted(f"{run_hash(ulid)} {payload}" for ulid, payload in known))


def run_hash(ulid: str) -> str:
    """The name of a run in a list."""
    return hashlib.sha256(ulid.encode()).hexdigest()


def digest(lines: Iterable[str]) -> bytes:
    """The SHA-256 of a list."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).digest()


def left_out(lines: Sequence[str], ulid: str, payloads: Iterable[str]) -> list[str]:
    """The payloads of a run that a list has and `payloads` lacks."""
    own = {line.partition(" ")[2] for line in lines if line.partition(" ")[0] == run_hash(ulid)}
    return sorted(own - set(payloads))
