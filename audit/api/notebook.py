"""For notebooks: a run as an HTML table without script, and rows as pandas data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from audit.report.tables.verdicts import VERDICTS, conclusion, faults_of, marked, verdict_rows
from audit.store import StoredCheck, StoredRun
from audit.text.extras import needs
from audit.text.unsafe import shortened, visible

if TYPE_CHECKING:
    from pandas import DataFrame

LONGEST_CELL: Final = 500
MOST_ROWS: Final = 200
STYLES: Final[Mapping[str, str]] = {
    "certified": "color:#1a7f37;font-weight:600",
    "fault": "color:#d1242f;font-weight:600",
    "inconclusive": "color:#9a6700;font-weight:600",
}


def html_of(run: StoredRun, checks: Sequence[StoredCheck]) -> str:
    """A heading and the table of verdicts; every text is escaped, and invisible characters show."""
    rows = marked(verdict_rows(checks), faults_of(run.arms))
    head = "".join(f"<th style='text-align:left'>{_safe(name)}</th>" for name in VERDICTS)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST_ROWS])
    more = f"<p>{len(rows) - MOST_ROWS} more verdicts: verdicts()</p>" if len(rows) > MOST_ROWS else ""
    name = f"run <code>{_safe(run.ulid)}</code> of {_safe(run.suite_name)}"
    title = f"<b>{_safe(conclusion(run.exit_code))}</b><br>{name}"
    return f"<div><p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>"


def frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows as a data frame.

    Raises:
        UserError: pandas is not installed.
    """
    with needs("notebook"):
        import pandas
    return pandas.DataFrame(list(rows))


def _cell(value: object) -> str:
    style = STYLES.get(str(value), "")
    return f"<td style='text-align:left;{style}'>{_safe(value)}</td>"


def _safe(value: object) -> str:
    return escape(visible(shortened(str(value), LONGEST_CELL)))
