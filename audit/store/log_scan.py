"""Recompute the log's tree from its entries, in one pass: gaps, and the first entry that does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.orm import Session

from audit.store import entries
from audit.store.entries import ADOPTED, STATE
from audit.store.log import grown, root_of
from audit.store.merkle import leaf_hash

OWN_TEXT: Final = (ADOPTED, STATE)
"""Kinds whose entries hold the bytes that they hash."""
MISFIT: Final = "the entry does not fit the tree: entries were reordered, replaced, inserted or edited"
QUERY: Final = "SELECT seq, kind, ref, text, leaf, node FROM log_entry ORDER BY seq"


@dataclass(frozen=True, slots=True)
class LogProblem:
    """An entry that does not fit, and why."""

    seq: int
    message: str


@dataclass(slots=True)
class Logged:
    """The last entry of a row: its place, leaf hash and text. Not frozen, which would double a scan's time."""

    seq: int
    leaf: bytes
    text: str | None


@dataclass(slots=True)
class Scan:
    """What one pass over the log gives. `roots` holds the roots at the sizes that were asked for."""

    size: int = 0
    root: bytes = b""
    logged: dict[str, dict[str, Logged]] = field(default_factory=dict)
    problems: list[LogProblem] = field(default_factory=list)
    roots: dict[int, bytes] = field(default_factory=dict)


def scan(session: Session, sizes: frozenset[int] = frozenset()) -> Scan:
    """Read the whole log, up to the first gap; what does not fit is a problem, never an error."""
    done, frontier, fits = Scan(), list[bytes](), True
    if 0 in sizes:
        done.roots[0] = root_of([])
    for seq, kind, ref, text, stored, node in entries.in_bulk(session, QUERY):
        if seq != done.size:
            done.problems.append(LogProblem(done.size, _gap(done.size, seq)))
            break
        leaf = bytes(stored)
        if grown(frontier, seq, leaf) != node and fits:
            # later entries build on this one, so only the first misfit says something
            fits = False
            done.problems.append(LogProblem(seq, MISFIT))
        done.size += 1
        _note(done, kind, ref, Logged(seq, leaf, text))
        if done.size in sizes:
            done.roots[done.size] = root_of(frontier)
    done.root = root_of(frontier)
    return done


def _note(done: Scan, kind: str, ref: str, entry: Logged) -> None:
    known = done.logged.setdefault(kind, {})
    if kind in OWN_TEXT:
        if entry.text is None or leaf_hash(entry.text.encode("utf-8", "surrogatepass")) != entry.leaf:
            done.problems.append(LogProblem(entry.seq, "the text of the entry was edited"))
    elif entry.text is not None:
        done.problems.append(LogProblem(entry.seq, "a text was added to the entry"))
    elif ref in known:
        done.problems.append(LogProblem(entry.seq, f"{kind} {ref} is logged a second time"))
    known[ref] = entry


def _gap(expected: int, found: int) -> str:
    if found < expected:
        return f"an entry with the number {found} was inserted"
    return "the entry was deleted" if found == expected + 1 else f"entries {expected} to {found - 1} were deleted"


def leaves(session: Session, size: int) -> list[bytes]:
    """The leaf hashes of the first `size` entries."""
    query = f"SELECT leaf FROM log_entry WHERE seq < {int(size)} ORDER BY seq"
    return [bytes(leaf) for (leaf,) in session.connection().exec_driver_sql(query)]
