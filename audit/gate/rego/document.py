"""The facts of a decision as the input of Rego modules; `schemas/gate-facts.json` is its reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from audit.gate.decision import GateOutcome
from audit.gate.facts import RunFacts
from audit.gate.judgement import GateRequest
from audit.store import StoredArm, StoredCheck
from audit.store.base.canonical import jsonable

VERSION: Final = 1


def facts_document(facts: RunFacts, request: GateRequest, outcome: GateOutcome) -> dict[str, Any]:
    """The facts, what the caller asked, and what the policy alone decides."""
    run, policy = facts.run, request.policy
    return {
        "version": VERSION,
        "now": jsonable(request.now),
        "run": {
            "ulid": run.ulid,
            "suite": {"name": run.suite_name, "sha256": run.suite_sha256},
            "status": run.status.value,
            "begun_at": jsonable(facts.begun),
            "finished_at": jsonable(run.finished_at),
            "actor": run.actor,
            "code_commit": run.code_commit,
            "record_root": run.record_root,
            "content_root": run.content_root,
            "tokens": run.tokens,
            "exit_code": run.exit_code,
            "packages": jsonable(run.environment.packages),
        },
        "models": [
            {"kind": used.kind, "role": used.role, "name": used.name, "revision": used.revision, "sha256": used.sha256}
            for used in run.artifacts
        ],
        "arms": [_arm(facts, arm) for arm in run.arms],
        "checks": _checks(facts.checks),
        "broken": list(facts.broken),
        "verdicts": "stored" if request.trust_verdicts else "recomputed",
        "signed_by": facts.ending.by,
        "subjects": [{"role": subject.role, "sha256": subject.sha256} for subject in request.subjects],
        "serves": list(policy.parts.serves if request.serves is None else request.serves),
        "policy": {"name": policy.name, "sha256": policy.sha256},
        "decision": outcome.answer.value,
        "reasons": [
            {"answer": reason.answer.value, "requirement": reason.requirement, "text": reason.text}
            for reason in outcome.reasons
        ],
    }


def _arm(facts: RunFacts, arm: StoredArm) -> dict[str, Any]:
    counts, parameters = arm.counts, facts.parameters.get(arm.name, {})
    return {
        "name": arm.name,
        "kind": arm.kind.value,
        "level": arm.level.name,
        "lossless": arm.lossless,
        "spec": jsonable(arm.spec),
        "configuration_sha256": arm.configuration_sha256,
        "requests": counts.requests,
        "output_tokens": counts.output,
        "target_forwards": counts.steps,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "coverage": dict(facts.coverage.get(arm.name, {})),
        "workload": jsonable(facts.workloads.get(arm.name)),
        "parameters": {check: jsonable(given.used) for check, given in parameters.items()},
    }


def _checks(checks: Sequence[StoredCheck]) -> list[dict[str, Any]]:
    numbers = ("n", "statistic", "p_value", "effect", "bound", "margin")
    return [
        {
            "arm": check.arm,
            "check": check.check,
            "claim": check.claim,
            "level": check.level.name,
            "verdict": check.verdict.value,
            **{name: jsonable(getattr(check, name)) for name in numbers},
        }
        for check in checks
    ]
