"""SQL by DuckDB, in a process of its own: at its end the library lists what it leaked, which hides a test's report."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, sys
import duckdb
with duckdb.connect() as connection:
    answers = [connection.execute(query).fetchall() for query in json.load(sys.stdin)]
print(json.dumps(answers, default=lambda value: value.hex() if isinstance(value, bytes) else str(value)))
"""


def duckdb_rows(*queries: str) -> list[list[list[Any]]]:
    """The rows of each query as JSON (bytes as hex, times as text); skips where DuckDB is missing."""
    if importlib.util.find_spec("duckdb") is None:
        pytest.skip("no DuckDB here")
    given = json.dumps(queries)
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    answers: list[list[list[Any]]] = json.loads(done.stdout)
    return answers
