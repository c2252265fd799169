"""A decision as SARIF 2.1.0, for code scanning: a rule per requirement, a result per reason."""

from __future__ import annotations

from typing import Final

from audit.gate.decision import Decision, Reason
from audit.gate.judgement import GateJudgement
from audit.gate.next_step import next_step
from audit.text.ci_formats import SarifResult, sarif

LEVELS: Final = {Decision.BLOCK: "error", Decision.CANNOT_DECIDE: "error", Decision.ALLOW: "note"}


def render(judgement: GateJudgement) -> str:
    """The document, indented."""
    reasons, run = judgement.outcome.reasons, judgement.run.ulid if judgement.run else "RUN"
    rules = {reason.requirement: f"requirement {reason.requirement}" for reason in reasons}
    results = [_result(judgement, reason, run) for reason in reasons]
    return sarif("specaudit gate", rules, results, {"decision": judgement.outcome.answer.value, "run": run})


def _result(judgement: GateJudgement, reason: Reason, run: str) -> SarifResult:
    step = next_step(reason, run)
    level = "warning" if judgement.warns and reason.answer is not Decision.ALLOW else LEVELS[reason.answer]
    suite = judgement.run.suite_name if judgement.run else "suite"
    text = reason.text + (f". Next: {step}" if step else "")
    return SarifResult(reason.requirement, level, text, (suite, reason.arm or "", reason.check or ""))
