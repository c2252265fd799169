"""The line of coverage per arm."""

from __future__ import annotations

from audit.report.coverage import coverage_lines
from audit.store.values import StoredCoverage


def test_the_line_counts_what_the_latest_look_saw():
    early, late = (StoredCoverage("chain", name, "recovered_token", n, n, 10) for name, n in (("law", 12), ("a", 40)))
    assert coverage_lines([late, early]) == ["coverage of chain: 40 rejections, 0 drafts kept whole"]
    assert coverage_lines([early, late]) == coverage_lines([late, early])
