from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from sqlalchemy import text

from audit.store import RunStatus, Store, log, migrate
from audit.store.covered import COVERED, ELSEWHERE, RUN_STATE
from audit.store.log import frontier_of, grown, root_of, subtree_ends
from audit.store.merkle import leaf_hash, merkle_root
from audit.store.models import Base
from tests.audit.store.build import connected, fill, fill_every_table, fill_finished

BEFORE = Path(__file__).parent / "before_layers" / "before.db.xz"


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


def test_an_old_store_is_adopted_behind_a_count(tmp_path):
    path = tmp_path / "before.db"
    path.write_bytes(lzma.decompress(BEFORE.read_bytes()))
    migrate.upgrade(str(path))
    entries = logged(str(path))
    assert entries[0].kind == "adopted"
    assert entries[0].text == f'["adopted",{len(entries) - 1}]'
    migrate.upgrade(str(path))
    assert len(logged(str(path))) == len(entries)
    with Store.open(str(path), create=False) as store:
        fill_finished(store)
        assert store.damage() == ()
