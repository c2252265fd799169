"""A suite with an arm that remembers finished requests, for tests that interrupt it; what a store has of its run."""

from __future__ import annotations

from pathlib import Path

from audit.runs.prepare import PreparedRun, prepare
from audit.suite.loader import load_suite
from tests.audit.runs.scripted_suites import suite_file
from tests.audit.store.build import connected

MEMORY = "proposer: {kind: suffix, gamma: 2, options: {cached_requests: 4}}"


def prepared_suite(folder: Path) -> PreparedRun:
    """An arm that remembers finished requests, and checks, so that some kills hit the judging; 32 requests in all."""
    path = suite_file(folder)
    text = path.read_text().replace("proposer: {kind: ngram, gamma: 2}", MEMORY)
    text = text.replace("max_new_tokens: 12", "max_new_tokens: 6")
    path.write_text(text[: text.index("  - name: greedy")] + text[text.index("  - name: chain") :])
    return prepare(load_suite(path))


def committed(url: str) -> dict[str, str]:
    """Record hashes of the newest run's requests, by row."""
    query = """SELECT request.id, record_hash FROM request
    WHERE run_id = (SELECT MAX(id) FROM run)"""
    with connected(url) as connection:
        return {str(row): digest for row, digest in connection.exec_driver_sql(query)}
