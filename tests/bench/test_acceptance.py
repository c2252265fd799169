"""The page of measured proposers: made from a run, and complete."""

import pytest
from click.testing import CliRunner

from engine import proposers
from tests.bench.acceptance import DOMAINS, PAGE, main

WITHOUT_MODEL = ("mlp_speculator",)
"""Proposers that no bundled model suits."""


@pytest.mark.slow
def test_the_page_is_made_from_a_run(tmp_path):
    out = tmp_path / "page.md"
    options = ["--out", str(out), "--prompts", "1", "--tokens", "8", "--only", "ngram", "--only", "specinfer"]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 0, result.output
    rows = [line.split(" | ") for line in out.read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == 2 * 2 * len(DOMAINS)
    assert {row[1] for row in rows} == {"greedy", "chain", "tree"}
    assert all(1 <= float(row[5]) <= 9 for row in rows)


def test_the_page_holds_every_registered_proposer():
    """Run `python -m tests.bench.acceptance` after a change of the registry."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    named = [line[3 : line.index("]")] for line in rows]
    assert set(named) == set(proposers.REGISTRY)
    assert len(rows) >= 2 * len(DOMAINS) * (len(proposers.REGISTRY) - len(WITHOUT_MODEL)) + 2 * len(WITHOUT_MODEL)
