"""The page of measured proposers: made from a run, and complete."""

from collections import Counter

import pytest
from click.testing import CliRunner

from engine import proposers
from tests.bench.acceptance import COMPARED, DEFAULT, DOMAINS, NO_MODEL, OPTIONS, PAGE, comparison, kind_of, main

pytestmark = pytest.mark.slow


def test_the_page_is_made_from_a_run(tmp_path):
    out = tmp_path / "page.md"
    options = ["--out", str(out), "--prompts", "1", "--tokens", "8", "--only", "ngram", "--only", "specinfer"]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 0, result.output
    rows = [line.split(" | ") for line in out.read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == 2 * 2 * len(DOMAINS)
    assert {row[1] for row in rows} == {"greedy", "chain", "tree"}
    assert all(1 <= float(row[5]) <= 9 for row in rows)


def test_one_proposer_is_measured_and_the_others_rows_stay(tmp_path):
    out = tmp_path / "page.md"
    few = ["--prompts", "1", "--tokens", "8", "--out", str(out)]
    CliRunner().invoke(main, [*few, "--only", "ngram", "--only", "suffix"])
    whole = out.read_text()
    shorter = [line for line in whole.splitlines(keepends=True) if "[ngram]" not in line]
    out.write_text("".join(shorter).replace("[suffix](proposers/suffix.md) | greedy | tools", "[suffix](mark)"))
    result = CliRunner().invoke(main, [*few, "--only", "ngram"])
    assert result.exit_code == 0, result.output
    marked = whole.replace("[suffix](proposers/suffix.md) | greedy | tools", "[suffix](mark)")
    assert out.read_text() == marked != whole
    refused = CliRunner().invoke(main, ["--only", "ngram", "--prompts", "2", "--tokens", "8", "--out", str(out)])
    assert refused.exit_code == 2
    assert "was measured with other settings" in refused.output
    assert out.read_text() == marked


def test_the_page_holds_registered_proposers_only_and_each_whole():
    """A proposer may be registered before it is measured: `python -m tests.bench.acceptance --only NAME`."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert set(map(kind_of, rows)) <= set(proposers.REGISTRY)
    counts = Counter(kind_of(line) for line in rows if NO_MODEL not in line)
    assert counts == {kind: 2 * len(DOMAINS) * len(OPTIONS.get(kind, DEFAULT)) for kind in counts}
    assert counts


def test_the_heads_are_compared_in_words():
    def rows(*lengths):
        pairs = zip(COMPARED, lengths, strict=True)
        return [
            f"| {name} | greedy | {domain} | {length} | - | 1.00 | 0 / 0 |"
            for name, length in pairs
            for domain in DOMAINS
        ]

    [sentence, _] = comparison(rows("10.00", "9.50", "9.50"))
    assert "10.00, 9.50, 9.50 on tools" in sentence
    assert sentence.endswith("each time in this order.")
    worse = [line.replace("10.00", "2.00") if "code" in line else line for line in rows("10.00", "9.50", "9.50")]
    assert comparison(worse)[0].endswith("another order on code.")
    assert comparison(rows("10.00", "-", "9.50")) == comparison(rows("1.00", "1.00", "1.00")[1:]) == []
