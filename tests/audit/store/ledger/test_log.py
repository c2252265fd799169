from __future__ import annotations

import pytest
from sqlalchemy import text

from audit.store import RunStatus, Store
from audit.store.base.merkle import leaf_hash, merkle_root
from audit.store.ledger import log
from audit.store.ledger.coverage import COVERED, ELSEWHERE, RUN_STATE
from audit.store.ledger.entries import data_of, data_of_many
from audit.store.ledger.log import frontier_of, grown, root_of, subtree_ends
from audit.store.ledger.log_scan import scan
from audit.store.tables.runs import Base
from tests.audit.store.build import connected, fill, fill_every_table


def logged(url):
    with connected(url) as connection:
        return connection.execute(text("SELECT seq, kind, ref, text, leaf, node FROM log_entry ORDER BY seq")).all()


def test_every_table_and_column_is_covered_or_says_where():
    for name, table in Base.metadata.tables.items():
        assert name in COVERED or name in ELSEWHERE, name
        covered = COVERED[name].columns if name in COVERED else ()
        rest = {column.name for column in table.columns} - {*covered}
        assert name in ELSEWHERE or not rest, (name, rest)
        if name in COVERED:
            assert covered[: COVERED[name].keys] == tuple(column.name for column in table.primary_key)
    run = {column.name for column in Base.metadata.tables["run"].columns}
    assert {*COVERED["run"].columns, *RUN_STATE.columns} == run


def test_the_frontier_gives_the_root_of_every_size():
    frontier = []
    for size in range(1, 70):
        grown(frontier, size - 1, leaf_hash(bytes([size])))
        assert root_of(frontier) == merkle_root([bytes([each]) for each in range(1, size + 1)])
        assert len(frontier) == len(subtree_ends(size)) == size.bit_count()
    assert root_of([]) == merkle_root([])


@pytest.mark.medium
def test_every_row_has_an_entry_in_either_database(any_url):
    fill_every_table(any_url)
    entries = logged(any_url)
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    assert {entry.kind for entry in entries} == {*COVERED, "state"}
    with Store.open(any_url, create=False) as store:
        assert store.damage() == ()
        with log.LoggedSession(store._engine) as session:
            assert root_of(frontier_of(session, len(entries))) == root_of_leaves(entries)


def root_of_leaves(entries):
    frontier = []
    for entry in entries:
        grown(frontier, entry.seq, bytes(entry.leaf))
    return root_of(frontier)


def test_a_transaction_that_fails_logs_nothing(store):
    run = fill(store)
    before = len(logged(store.url))
    with pytest.raises(RuntimeError):
        store.add_checkpoint(lambda head: (_ for _ in ()).throw(RuntimeError))
    store.set_status(run, RunStatus.FAILED, "stopped")
    assert [entry.kind for entry in logged(store.url)[before:]] == ["run_event", "state"]


class OfRows:
    """A session whose log has these rows."""

    def __init__(self, rows):
        self.rows = rows

    def connection(self):
        return self

    def exec_driver_sql(self, _query):
        return self

    def partitions(self, size):
        return (self.rows[begin : begin + size] for begin in range(0, len(self.rows), size))


def test_a_scan_in_parts_finds_every_root_and_the_first_entry_that_does_not_fit(monkeypatch):
    monkeypatch.setattr("audit.store.ledger.entries.BULK", 4)
    rows, frontier, roots = [], [], {0: root_of([])}
    for seq in range(23):
        leaf = leaf_hash(bytes([seq]))
        rows.append((seq, "arm", str(seq), None, leaf, grown(frontier, seq, leaf)))
        roots[seq + 1] = root_of(frontier)
    for count in range(24):
        whole = scan(OfRows(rows[:count]), frozenset(range(count + 1)))
        assert (whole.size, whole.root, whole.problems) == (count, roots[count], [])
        assert whole.roots == {size: roots[size] for size in range(count + 1)}
    for seq in range(23):
        changed = [*rows[:seq], (*rows[seq][:5], bytes(32)), *rows[seq + 1 :]]
        assert [place for place, _ in scan(OfRows(changed)).problems] == [seq]
        if seq < 22:
            assert scan(OfRows(rows[:seq] + rows[seq + 1 :])).size == seq


def test_texts_with_the_characters_between_entries_are_encoded_one_by_one():
    for rows in ([(1, "a"), (2, None)], [(1, "],["), (2, "b")], [(1, None)], [(None,)], []):
        assert data_of_many("arm", rows) == [data_of("arm", row) for row in rows]
