"""A run as a short Markdown table, for the summary of a CI job or a comment on a change."""

from __future__ import annotations

from typing import Final

from audit.evidence.verdicts import Verdict
from audit.report.tables.results import Results
from audit.report.tables.verdicts import conclusion
from audit.text.markdown import as_it_is, table_lines

MOST: Final = 200
"""Rows: a job summary above 1 MiB is thrown away."""
ORDER: Final = (Verdict.FAULT, Verdict.INCONCLUSIVE, Verdict.CERTIFIED)
COLUMNS: Final = ("verdict", "arm", "check", "claim", "n", "what was found")


def render(shown: Results) -> str:
    """A heading, the run, and a row per claim that was judged, faults first."""
    run = shown.run
    checks = [check for verdict in ORDER for check in shown.checks if check.verdict is verdict]
    rows = [(check.verdict.value, check.arm, check.check, check.claim, str(check.n), check.summary) for check in checks]
    idle = len(shown.checks) - len(checks)
    return "\n".join(
        [
            f"### audit: {as_it_is(conclusion(run.exit_code))}",
            "",
            f"* run `{run.ulid}` of suite {as_it_is(run.suite_name)}, record root `{run.record_root}`",
            "",
            *table_lines(COLUMNS, rows[:MOST]),
            *(["", f"{len(rows) - MOST} more claims: `audit show {run.ulid}`"] if len(rows) > MOST else []),
            *(["", f"{idle} checks did not run: `audit show {run.ulid}` says why"] if idle else []),
        ]
    )
