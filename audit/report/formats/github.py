"""A run as workflow commands of GitHub Actions: an annotation per claim that is not certified, at most ten."""

from __future__ import annotations

from audit.evidence.verdicts import Verdict
from audit.report.tables.results import Results
from audit.report.tables.verdicts import conclusion
from audit.store import StoredCheck
from audit.text.unsafe import visible
from audit.text.workflow_commands import MOST, annotation

LEVELS = {Verdict.FAULT: "error", Verdict.INCONCLUSIVE: "warning"}


def render(shown: Results) -> str:
    """The commands, faults first, and the run's conclusion as a last line."""
    unmet = [check for verdict in LEVELS for check in shown.checks if check.verdict is verdict]
    hidden = max(0, len(unmet) - MOST)
    more = f"; {hidden} more claims not shown" if hidden else ""
    last = f"{conclusion(shown.run.exit_code)} (run {shown.run.ulid} of {visible(shown.run.suite_name)}){more}"
    return "\n".join([*map(_command, unmet[:MOST]), last])


def _command(check: StoredCheck) -> str:
    title = f"audit: {check.arm}, {check.check}: {check.verdict.value}"
    return annotation(LEVELS[check.verdict], title, check.summary)
