"""A decision as JSON, for programs. Version 2 added next steps, what was asked, and where the verdicts are from.

Version 3 added what a reason is about, and the signed waiver or review that made a remark of it, with its end.
"""

from __future__ import annotations

import json
from typing import Any

from audit.gate.judgement import GateJudgement
from audit.gate.next_step import next_step
from audit.gate.rules.subjects import engines


def render(judgement: GateJudgement) -> str:
    """The document, indented."""
    return json.dumps(document(judgement), indent=2)


def document(judgement: GateJudgement) -> dict[str, Any]:
    """The decision as JSON values."""
    run, request, outcome = judgement.run, judgement.request, judgement.outcome
    name = run.ulid if run else "RUN"
    return {
        "version": 3,
        "decision": outcome.answer.value,
        "exit_code": judgement.exit_code,
        "warn_only": request.warn_only,
        "run": run.ulid if run else None,
        "record_root": run.record_root if run else None,
        "suite": {"name": run.suite_name, "sha256": run.suite_sha256} if run else None,
        "origin": judgement.origin,
        "policy": {"name": request.policy.name, "sha256": request.policy.sha256},
        "verdicts": "stored" if request.trust_verdicts else "recomputed",
        "signed_by": judgement.facts.ending.by if judgement.facts else None,
        "serves": list(request.policy.parts.serves if request.serves is None else request.serves),
        "subjects": [{"role": part.role, "sha256": part.sha256, "origin": part.origin} for part in request.subjects],
        "engines": {part.name: part.sha256 for part in engines(judgement.facts)} if judgement.facts else {},
        "reasons": [
            {
                "answer": reason.answer.value,
                "requirement": reason.requirement,
                "text": reason.text,
                "arm": reason.arm,
                "check": reason.check,
                "about": reason.about,
                "statement": reason.statement,
                "until": None if reason.until is None else reason.until.isoformat(),
                "next": next_step(reason, name),
            }
            for reason in outcome.reasons
        ],
        "actor": request.actor,
        "at": request.now.isoformat(),
    }
