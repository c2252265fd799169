"""Answers of `audit query` as Markdown and as Parquet, the latter read by DuckDB and pandas."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pytest

from audit.text.parquet import parquet_bytes
from tests.audit.invoke import invoke
from tests.audit.store.build import made_store
from tests.support.duck import duckdb_rows

MIXED = "SELECT 1 AS n, 0.5 AS x, 'a|b' AS word, NULL AS absent, started_at, x'00ff' AS raw FROM run"


@pytest.fixture
def url(tmp_path):
    return made_store(tmp_path)


def saved(url, tmp_path, *arguments):
    path = tmp_path / "rows.parquet"
    result = invoke("query", *arguments, "--format", "parquet", "--out", str(path), "--store", url)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    return path


@pytest.mark.medium
def test_markdown_is_a_table_whose_cells_stay_cells(url):
    result = invoke("query", "--sql", MIXED, "--format", "markdown", "--store", url)
    head, rule, row = result.stdout.splitlines()
    assert head == "| n | x | word | absent | started_at | raw |"
    assert rule == "|--:|--:|---|--:|---|---|"
    assert row.startswith(r"| 1 | 0.5 | a\|b | - | 20")
    hostile = "SELECT '<b>[x](y)`' || char(10) || '|' AS \"a|b\""
    head, _, row = invoke("query", "--sql", hostile, "--format", "markdown", "--store", url).stdout.splitlines()
    assert (head, row) == (r"| a\|b |", r"| &lt;b>\[x\](y)\`\\n\| |")


@pytest.mark.medium
def test_duckdb_reads_the_types_that_the_store_has(url, tmp_path):
    path = saved(url, tmp_path, "--sql", MIXED)
    described, (row,) = duckdb_rows(f"DESCRIBE SELECT * FROM '{path}'", f"SELECT n, x, word, absent, raw FROM '{path}'")
    kinds = {each[0]: each[1] for each in described}
    assert kinds == {
        "n": "BIGINT",
        "x": "DOUBLE",
        "word": "VARCHAR",
        "absent": "VARCHAR",
        "started_at": "TIMESTAMP WITH TIME ZONE",
        "raw": "BLOB",
    }
    assert row == [1, 0.5, "a|b", None, "00ff"]


@pytest.mark.medium
def test_pandas_reads_the_same_rows_as_the_other_formats(url, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(saved(url, tmp_path, "slow"))
    text = tmp_path / "rows.csv"
    assert invoke("query", "slow", "--format", "csv", "--out", str(text), "--store", url).stdout == ""
    pandas.testing.assert_frame_equal(frame, pandas.read_csv(text), check_dtype=False)


@pytest.mark.medium
def test_values_keep_their_types():
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    columns = ("count", "rate", "huge", "flag", "when", "stored", "not_quite", "mixed")
    first = (2**53 + 1, 1, 2**64, True, moment, "2026-01-02 03:04:05.000006", "2026-13-41 03:04:05.000006", 1)
    second = (None, 0.1, 1, None, None, None, "2026-01-02 03:04:05.000006", "a")
    content = parquet_bytes(columns, [first, second])
    assert content == parquet_bytes(columns, [first, second])
    table = parquet.read_table(pyarrow.BufferReader(content))
    rows = table.to_pylist()
    assert tuple(rows[0].values()) == (2**53 + 1, 1.0, str(2**64), True, moment, moment, first[6], "1")
    assert tuple(rows[1].values()) == (None, 0.1, "1", None, None, None, second[6], "a")


def refused(*arguments):
    result = invoke("query", *arguments)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    return result.stderr


@pytest.mark.medium
def test_mistakes_are_one_line_and_leave_no_file(url, tmp_path):
    path, nowhere = tmp_path / "x.parquet", tmp_path / "no" / "x"
    form = ("--format", "parquet", "--store", url)
    assert "--out FILE.parquet" in refused("slow", *form)
    assert "2 columns are named 'a'" in refused("--sql", "SELECT 1 AS a, 2 AS a", *form, "--out", str(path))
    assert "cannot be written" in refused("slow", *form, "--out", str(nowhere))
    assert not path.exists()


@pytest.mark.medium
def test_a_missing_pyarrow_is_named_with_its_extra(url, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "x.parquet"
    message = refused("slow", "--format", "parquet", "--store", url, "--out", str(path))
    assert "pip install 'specaudit[parquet]'" in message
    assert not path.exists()
