"""Recompute the log's tree from its entries, in one pass: gaps, and the first entry that does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy.orm import Session

from audit.store.base.merkle import leaf_hash, node_hash
from audit.store.ledger import entries
from audit.store.ledger.log import OWN_TEXT, grown, root_of

MISFIT: Final = "the entry does not fit the tree: entries were reordered, replaced, inserted or edited"
QUERY: Final = "SELECT seq, kind, ref, text, leaf, node FROM log_entry ORDER BY seq"


@dataclass(slots=True)
class Scan:
    """Results of one pass over the log.

    leaves: the leaf hashes, by place. texts: the text of each entry that has one, by place.
    logged: by kind and key the place of the row's last entry.
    roots: the roots at the sizes that were asked for.
    """

    size: int = 0
    root: bytes = b""
    leaves: list[bytes] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    logged: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Entries that do not fit, and why."""
    roots: dict[int, bytes] = field(default_factory=dict)


def scan(session: Session, sizes: frozenset[int] = frozenset()) -> Scan:
    """Read the whole log, up to the first gap; what does not fit is a problem, never an error."""
    done, frontier, fits = Scan(), list[bytes](), True
    done.roots = {0: root_of([])} if 0 in sizes else {}
    for rows in entries.in_bulk(session, QUERY):
        first, gap = done.size, _first_gap(rows, done.size)
        whole = rows if gap is None else rows[:gap]
        tree = _subtrees([bytes(row[4]) for row in whole])
        misfit = _misfit(frontier, first, tree, [bytes(row[5]) for row in whole]) if fits else None
        if misfit is not None:
            # later entries build on this one, so only the first misfit says something
            fits = False
            done.problems.append((misfit, MISFIT))
        _note(done, whole)
        done.leaves += tree[0]
        done.size += len(whole)
        ends = {size for size in sizes if first < size <= done.size}
        done.roots |= {size: root_of([*frontier, *_first(tree, size - first)]) for size in ends}
        if gap is not None:
            done.problems.append((done.size, _gap(done.size, rows[gap][0])))
        if len(whole) < entries.BULK:
            frontier += _first(tree, len(whole))
            break
        grown(frontier, first // entries.BULK, tree[-1][0])
    done.root = root_of(frontier)
    return done


def _first_gap(rows: Sequence[Sequence[Any]], first: int) -> int | None:
    """Index of the first row that does not have the next place."""
    if rows[-1][0] == first + len(rows) - 1 and rows[0][0] == first:  # places are unique and ascend
        return None
    return next(index for index, row in enumerate(rows) if row[0] != first + index)


def _subtrees(leaves: list[bytes]) -> list[list[bytes]]:
    """The roots of the perfect subtrees over 1, 2, 4 and so on leaves, in order."""
    made = [leaves]
    while len(made[-1]) > 1:
        level = made[-1]
        made.append([node_hash(left, right) for left, right in zip(level[::2], level[1::2], strict=False)])
    return made


def _first(tree: list[list[bytes]], count: int) -> list[bytes]:
    """The roots of the perfect subtrees that the first `count` leaves split into, largest first."""
    roots, begin = [], 0
    for height in reversed(range(len(tree))):
        if count >> height & 1:
            roots.append(tree[height][begin >> height])
            begin += 1 << height
    return roots


def _misfit(frontier: list[bytes], first: int, tree: list[list[bytes]], nodes: list[bytes]) -> int | None:
    """The first entry with another node than its subtree's root; `frontier` is that of the entries before."""
    completed = [level[::2] for level in tree]
    if len(nodes) == entries.BULK:
        completed[-1] = [grown(list(frontier), first // entries.BULK, tree[-1][0])]
    if all(nodes[(1 << height) - 1 :: 2 << height] == roots for height, roots in enumerate(completed)):
        return None
    before = list(frontier)
    pairs = enumerate(zip(tree[0], nodes, strict=True), start=first)
    return next(seq for seq, (leaf, node) in pairs if grown(before, seq, leaf) != node)


def _note(done: Scan, rows: Sequence[Sequence[Any]]) -> None:
    """Note the rows of the entries behind those that are noted."""
    for seq, kind, ref, text, leaf, _ in rows:
        known = done.logged.setdefault(kind, {})
        if kind in OWN_TEXT:
            if text is None or leaf_hash(text.encode("utf-8", "surrogatepass")) != bytes(leaf):
                done.problems.append((seq, "the text of the entry was edited"))
        elif text is not None:
            done.problems.append((seq, "a text was added to the entry"))
        elif ref in known:
            done.problems.append((seq, f"{kind} {ref} is logged a second time"))
        if text is not None:
            done.texts[seq] = text
        known[ref] = seq


def _gap(expected: int, count: int) -> str:
    if count < expected:
        return f"an entry with the number {count} was inserted"
    return "the entry was deleted" if count == expected + 1 else f"entries {expected} to {count - 1} were deleted"


def leaves(session: Session, size: int) -> list[bytes]:
    """The leaf hashes of the first `size` entries."""
    query = f"SELECT leaf FROM log_entry WHERE seq < {int(size)} ORDER BY seq"
    return [bytes(leaf) for (leaf,) in session.connection().exec_driver_sql(query)]
