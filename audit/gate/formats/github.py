"""A decision as workflow commands of GitHub Actions: an annotation per reason, at most ten, as GitHub shows no more."""

from __future__ import annotations

from audit.gate.decision import Decision, Reason
from audit.gate.judgement import GateJudgement
from audit.gate.next_step import next_step
from audit.text.ci_formats import MOST_ANNOTATIONS, annotation


def render(judgement: GateJudgement) -> str:
    """The commands, and the decision as a last line."""
    run = judgement.run.ulid if judgement.run else "RUN"
    level = "warning" if judgement.warns else "error"
    unmet = [reason for reason in judgement.outcome.reasons if reason.answer is not Decision.ALLOW]
    remarks = [reason for reason in judgement.outcome.reasons if reason.answer is Decision.ALLOW]
    lines = [_command(level, reason, run) for reason in unmet[:MOST_ANNOTATIONS]]
    lines += [_command("notice", reason, run) for reason in remarks[:MOST_ANNOTATIONS]]
    hidden = max(0, len(unmet) - MOST_ANNOTATIONS)
    more = f", {hidden} more reasons not shown" if hidden else ""
    policy = judgement.request.policy
    return "\n".join([*lines, f"{judgement.outcome.answer.words}: {run} under policy {policy.name}{more}"])


def _command(level: str, reason: Reason, run: str) -> str:
    step = next_step(reason, run)
    text = f"{reason.text}. Next: {step}" if step else reason.text
    return annotation(level, f"audit gate: {reason.requirement}", text)
