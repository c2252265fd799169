"""A run as Parquet files: DuckDB and pandas read every table and view, with the store's numbers."""

from __future__ import annotations

import pytest

from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.store.build import fill_finished
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.duck import duckdb_rows

__all__ = ["any_url", "cluster", "postgres"]

pytest.importorskip("pyarrow")


@pytest.mark.medium
def test_duckdb_and_pandas_read_the_tables_and_views_of_one_run(any_url, tmp_path):
    with Store.open(any_url, create=False) as store:
        fill_finished(store)
        run = fill_finished(store)
    folder = tmp_path / "run"
    done = invoke("export", run, "--format", "parquet", "--out", str(folder), "--store", any_url)
    assert (done.exit_code, done.stderr) == (0, "")
    names = {path.stem for path in folder.iterdir()}
    assert {"run", "arm", "request", "content", "token_trace", "check_result", "v_step", "v_token", "v_run"} <= names
    query = f"SELECT role, COUNT(*) FROM '{folder}/v_token.parquet' GROUP BY role ORDER BY role"
    steps = f"SELECT SUM(n_drafted), COUNT(DISTINCT run) FROM '{folder}/v_step.parquet'"
    keys = f"SELECT COUNT(*) FROM '{folder}/request.parquet' AS r JOIN '{folder}/arm.parquet' AS a ON a.id = r.arm_id"
    roles, sums, joined = duckdb_rows(query, steps, keys)
    assert (sums, joined) == ([[14, 1]], [[4]])
    assert dict(roles)["accepted"] == 7
    pandas = pytest.importorskip("pandas")
    checks = pandas.read_parquet(folder / "check_result.parquet")
    assert sorted(checks["name"]) == ["law", "replay"]
    assert str(checks["created_at"].dtype).startswith("datetime64")


def test_a_folder_that_exists_is_kept(any_url, tmp_path):
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
    (tmp_path / "there").mkdir()
    refused = invoke("export", run, "--format", "parquet", "--out", str(tmp_path / "there"), "--store", any_url)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    missing = invoke("export", run, "--format", "parquet", "--out", str(tmp_path / "no" / "x"), "--store", any_url)
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
