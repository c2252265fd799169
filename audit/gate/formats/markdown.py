"""A decision as Markdown, for job summaries and comments on a change."""

from __future__ import annotations

from typing import Final

from audit.gate.judgement import GateJudgement
from audit.gate.next_step import next_step
from audit.text.markdown import as_code, as_it_is, table_lines

MOST: Final = 200
"""Reasons in one table: a job summary above 1 MiB is thrown away."""


def render(judgement: GateJudgement) -> str:
    """A heading, the facts and a table of reasons."""
    run, request = judgement.run, judgement.request
    name = run.ulid if run else "RUN"
    warned = " (a warning: `--warn-only`)" if judgement.warns else ""
    lines = [
        f"### audit gate: {judgement.outcome.answer.words}{warned}",
        "",
        f"* run `{name}`" + (f" of suite {as_it_is(run.suite_name)}, record root `{run.record_root}`" if run else ""),
        f"* policy {as_code(request.policy.name)} sha256:`{request.policy.sha256}`",
        f"* verdicts {'as stored' if request.trust_verdicts else 'recomputed from the record'}",
        *(f"* subject {as_it_is(part.role)} sha256:`{part.sha256}`" for part in request.subjects),
    ]
    reasons = judgement.outcome.reasons
    if reasons:
        columns = ("decision", "requirement", "reason", "next step")
        rows = (
            (reason.answer.words, reason.requirement, reason.text, next_step(reason, name) or "")
            for reason in reasons[:MOST]
        )
        lines += ["", *table_lines(columns, rows)]
    if len(reasons) > MOST:
        lines += ["", f"{len(reasons) - MOST} more reasons are in the store: `audit show {name}`"]
    return "\n".join(lines)
