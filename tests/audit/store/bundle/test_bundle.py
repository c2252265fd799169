"""Bundles: the same bytes for the same run, verified without a store, imported whole or not at all."""

from __future__ import annotations

import json
import shutil
from datetime import datetime

import pytest

from audit.errors import UserError
from audit.store import NewCheck, RunStatus, Store, migrate
from audit.store.base.keys import PrivateKey
from audit.store.bundle.tables import LEFT_OUT, kind_of, natural_key, owned, parents, travelling
from audit.store.ledger import notes
from audit.store.tables.foreign_values import WORDS
from audit.store.tables.runs import Base
from audit.store.verified_bundle import FREE, opened
from tests.audit.invoke import invoke
from tests.audit.store.build import RESULT, fill, fill_every_table, fill_finished, made_store, start
from tests.audit.store.bundle.build import edited, exported, parts_of, restated, zipped
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]


@pytest.fixture
def url(tmp_path):
    return made_store(tmp_path)


@pytest.fixture
def bundle(url, tmp_path):
    return exported(url, tmp_path / "run.zip")


def test_every_table_travels_or_is_left_out_with_a_reason():
    metadata = Base.metadata
    names = {table.name for table in travelling(metadata)}
    assert names | set(LEFT_OUT) >= set(metadata.tables)
    assert not names & set(LEFT_OUT)
    of_run = owned(metadata)
    for table in travelling(metadata):
        # what is shared needs a name that is the same in every store, and a run that leads to it
        reached = any(table.name in parents(other).values() for other in travelling(metadata))
        assert table.name in of_run or (natural_key(table) != ("id",) and (reached or parents(table))), table.name


@pytest.mark.medium
def test_the_bundle_has_all_columns_and_all_rows(bundle):
    parts = parts_of(bundle)
    for table in travelling(Base.metadata):
        rows = [json.loads(line) for line in parts[f"tables/{table.name}.jsonl"].splitlines()]
        assert all(set(row) == set(table.columns.keys()) for row in rows), table.name
    assert parts["tables/request.jsonl"].count(b"\n") == 4
    assert parts["tables/token_trace.jsonl"].count(b"\n") == 4
    assert parts["tables/check_result.jsonl"].count(b"\n") == 2


@pytest.mark.medium
def test_the_same_run_gives_the_same_bytes_also_from_a_store_with_other_runs(url, bundle, any_url, tmp_path):
    assert exported(url, tmp_path / "again.zip").read_bytes() == bundle.read_bytes()
    with Store.open(any_url, create=False) as store:
        fill_finished(store)
        fill(store)
    assert invoke("import", str(bundle), "--store", any_url).exit_code == 0
    with Store.open(any_url, create=False) as store:
        run = json.loads(parts_of(bundle)["manifest.json"])["run"]
        store.export_bundle(run, tmp_path / "theirs.zip")
    ours, theirs = parts_of(bundle), parts_of(tmp_path / "theirs.zip")
    assert {name for name in ours if ours[name] != theirs[name]} == {"manifest.json", "tables/run_event.jsonl"}


@pytest.mark.medium
def test_an_imported_run_is_whole_shown_judged_and_not_imported_twice(bundle, any_url):
    with Store.open(any_url, create=False) as store:
        fill_finished(store)
    first = invoke("import", str(bundle), "--store", any_url)
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout.endswith("imported\n")
    assert "was there already" in invoke("import", str(bundle), "--store", any_url).stdout
    run = json.loads(parts_of(bundle)["manifest.json"])["run"]
    with Store.open(any_url, create=False) as store:
        assert len(store.list_runs(9)) == 2
        assert store.damage() == ()
        assert store.verify_root(run)
        # keys stay free for the next run
        fill_finished(store)
    assert "certified" in invoke("show", run, "--store", any_url).stdout
    owner = ("--superuser",) if any_url.startswith("postgresql") else ()
    events = invoke("query", "--sql", "SELECT detail FROM run_event", "--store", any_url, *owner).stdout
    assert events.count("imported from bundle sha256:") == 1
    assert invoke("diff", run, "latest", "--store", any_url).exit_code in (0, 1)


@pytest.mark.medium
def test_the_latest_run_is_never_an_imported_one(bundle, any_url):
    assert invoke("import", str(bundle), "--store", any_url).exit_code == 0
    run = json.loads(parts_of(bundle)["manifest.json"])["run"]
    for command in (("show", "latest"), ("gate", "latest", "--policy", "standard", "--no-subject")):
        alone = invoke(*command, "--store", any_url)
        assert alone.exit_code != 0
        assert f"all runs of the store were imported, and latest is none of those; name {run}" in alone.output
    with Store.open(any_url, create=False) as store:
        own = fill_finished(store)
    with Store.open(any_url, create=False) as store:
        assert store.resolve("latest") == own != run


@pytest.mark.medium
def test_an_old_run_that_comes_later_is_not_the_latest(bundle, tmp_path):
    other = made_store(tmp_path / "other")
    with Store.open(other, create=False) as store:
        own = fill_finished(store)
    assert invoke("import", str(bundle), "--store", other).exit_code == 0
    with Store.open(other, create=False) as store:
        assert store.resolve("latest") == own
        assert len(store.list_runs(9)) == 3


@pytest.mark.medium
def test_a_run_with_another_content_is_refused(url, bundle):
    with Store.open(url, create=False) as store:
        store.add_check(store.resolve("latest"), NewCheck("spec", "late", "late", start().arms[0].level, RESULT))
    result = invoke("import", str(bundle), "--store", url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "another content: table check_result differs" in result.stderr


@pytest.mark.medium
def test_verify_needs_no_store_and_says_what_is_not_proved(bundle, tmp_path, monkeypatch):
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(bundle, alone / "run.zip")
    monkeypatch.setenv("AUDIT_STORE", str(alone / "none.db"))
    result = invoke("verify", str(alone / "run.zip"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "recomputed from 4 requests of 2 arms" in result.stdout
    assert "2 verdicts, which the record root does not cover" in result.stdout
    assert [each.name for each in alone.iterdir()] == ["run.zip"]


CHANGES = {
    "a token count": ("request", lambda rows: rows[1].update(n_output=rows[1]["n_output"] + 1), "base/case-b#0"),
    "an arm's gamma": ("arm", lambda rows: rows[1]["spec"].update(gamma=9), "spec"),
    "a missing request": ("token_trace", lambda rows: rows.pop(), "its trace is missing"),
    "the package versions": ("environment", lambda rows: rows[0].update(sha256="0" * 64), "facts were changed"),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_though_the_manifest_fits_it(bundle, tmp_path, name):
    table, change, place = CHANGES[name]
    forged = edited(bundle, table, change)
    result = invoke("verify", str(forged))
    assert result.exit_code == 1
    assert result.stdout.startswith("mismatch: ")
    assert place in result.stdout
    target = tmp_path / "target.db"
    refused = invoke("import", str(forged), "--store", str(target))
    assert (refused.exit_code, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1)
    assert not target.exists()


def other(table, column, value):
    """Another value of a column, of the same kind."""
    for word in sorted(WORDS.get((table.name, column.name), ())):
        if word != value:
            return word
    kind = kind_of(column)
    if kind is datetime:
        return "2031-01-01T00:00:00+00:00"
    if kind in (int, float):
        return (value or 0) + 1
    if kind is str:
        return (value or "")[:-1] + ("1" if (value or "").endswith("0") else "0")
    return {bool: not value, bytes: "AAAA"}.get(kind, {**value, "more": 1} if isinstance(value, dict) else ["more"])


@pytest.mark.slow
def test_every_column_is_covered_by_a_hash_or_listed_as_not_proved(tmp_path):
    url = str(tmp_path / "every.db")
    migrate.upgrade(url)
    fill_every_table(url)
    with Store.open(url, create=False) as store:
        store.add_checkpoint(lambda head: notes.signed(head, PrivateKey("k", b"k" * 32)))
    parts, wrong = parts_of(exported(url, tmp_path / "every.zip")), []
    parts.pop("log.jsonl")
    bundle = zipped(tmp_path / "every.zip", restated(parts))
    for table in travelling(Base.metadata):
        rows = [json.loads(line) for line in parts[f"tables/{table.name}.jsonl"].splitlines()]
        assert rows, f"{table.name} has no row to change"
        for column in table.columns:
            value = other(table, column, rows[-1][column.name])
            forged = edited(bundle, table.name, lambda rows, at=column.name, value=value: rows[-1].update({at: value}))
            try:
                with opened(forged) as shown:
                    seen = bool(shown.broken)
            except UserError:
                seen = True
            free = FREE.get(table.name, ())
            if not seen and free != ("*",) and column.name not in free:
                wrong.append(f"{table.name}.{column.name} is not covered")
            if seen and column.name in free:
                wrong.append(f"{table.name}.{column.name} is covered and listed as free")
    assert not wrong, "; ".join(wrong)
    assert set(FREE) <= {table.name for table in travelling(Base.metadata)}


@pytest.mark.medium
def test_a_changed_verdict_is_found_by_judging_again(url, tmp_path):
    assert invoke("judge", "--store", url).exit_code == 1  # the results of this store were made up
    bundle = exported(url, tmp_path / "run.zip")
    again = invoke("verify", str(bundle), "--judge")
    assert again.exit_code == 0
    assert again.stdout.endswith("judged      2 of 2 results come again from the record\n")
    forged = edited(bundle, "check_result", lambda rows: rows[-2].update(verdict="certified"))
    assert invoke("verify", str(forged)).exit_code == 0
    judged = invoke("verify", str(forged), "--judge")
    assert judged.exit_code == 1
    assert "differs: spec law: verdict certified -> " in judged.stdout


@pytest.mark.medium
def test_only_a_finished_run_is_exported_and_only_to_a_zip(tmp_path):
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:
        run = fill(store)
        store.set_status(run, RunStatus.INTERRUPTED)
    result = invoke("export", "--out", str(tmp_path / "x.zip"), "--store", url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "only a finished run" in result.stderr
    assert "name it" in invoke("export", "--out", url, "--store", url).stderr
    with Store.open(url, create=False) as store:
        store.set_status(run, RunStatus.RUNNING)
        store.finish_run(run, RunStatus.FINISHED, 0)
    assert "cannot be written" in invoke("export", "--out", str(tmp_path / "no" / "x.zip"), "--store", url).stderr
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".zip" or each.name.startswith(".")] == []
