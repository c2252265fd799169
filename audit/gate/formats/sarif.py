"""A decision as SARIF 2.1.0, for code scanning: a rule per requirement, a result per reason."""

from __future__ import annotations

import json
from typing import Any, Final

from audit.gate.decision import Decision, Reason
from audit.gate.judgement import GateJudgement
from audit.gate.next_step import next_step
from audit.text.unsafe import visible

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS: Final = {Decision.BLOCK: "error", Decision.CANNOT_DECIDE: "error", Decision.ALLOW: "note"}


def render(judgement: GateJudgement) -> str:
    """The document, indented."""
    reasons, run = judgement.outcome.reasons, judgement.run.ulid if judgement.run else "RUN"
    rules = list(dict.fromkeys(reason.requirement for reason in reasons))
    driver = {
        "name": "specaudit gate",
        "rules": [
            {"id": visible(rule), "shortDescription": {"text": f"requirement {visible(rule)}"}} for rule in rules
        ],
    }
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "results": [_result(judgement, reason, rules, run) for reason in reasons],
                "properties": {"decision": judgement.outcome.answer.value, "run": run},
            }
        ],
    }
    return json.dumps(log, indent=2)


def _result(judgement: GateJudgement, reason: Reason, rules: list[str], run: str) -> dict[str, Any]:
    step = next_step(reason, run)
    level = "warning" if judgement.warns and reason.answer is not Decision.ALLOW else LEVELS[reason.answer]
    suite = judgement.run.suite_name if judgement.run else "suite"
    place = {"fullyQualifiedName": visible("/".join(part for part in (suite, reason.arm, reason.check) if part))}
    return {
        "ruleId": visible(reason.requirement),
        "ruleIndex": rules.index(reason.requirement),
        "level": level,
        "message": {"text": visible(reason.text) + (f". Next: {step}" if step else "")},
        "locations": [{"logicalLocations": [place]}],
    }
