"""Predicates of statements about a run: in-toto's test-result, the speculation record, and an eval-result.

* `test-result` v0.1 has PASSED only if the run's exit code is 0. An inconclusive check is among the failed tests, since
  a consumer lets warned ones through.
* The speculation record is our own (`schemas/speculation.json`).
* `eval-result` is a proposal at in-toto (attestation pull request 575) and may change; it states one metric, the number
  of checks of arms under audit that are not certified though they apply.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from audit.attest.facts import AttestedRun, governance_of, subjects_of, tool
from audit.attest.statement import EVAL_RESULT, SPECULATION, TEST_RESULT, InToto
from audit.evidence.verdicts import Verdict
from audit.store import StoredArm, StoredCheck
from audit.store.base.canonical import jsonable, named

VERSION: Final = 1
KINDS: Final[Mapping[str, str]] = {"test-result": TEST_RESULT, "speculation": SPECULATION, "eval-result": EVAL_RESULT}
"""Statements about a run, by the name that the command line uses."""


def statement(kind: str, facts: AttestedRun) -> InToto:
    """The statement of a kind of `KINDS`."""
    predicate = {"test-result": test_result, "speculation": speculation, "eval-result": eval_result}[kind](facts)
    return InToto(subjects_of(facts.run), KINDS[kind], predicate)


def test_result(facts: AttestedRun) -> dict[str, Any]:
    """Predicate test-result v0.1: one per run."""
    run = facts.run
    failing = (Verdict.FAULT, Verdict.INCONCLUSIVE)
    configuration = [
        {
            "name": f"suite:{run.suite_name}",
            "digest": {"sha256": run.suite_sha256},
            "annotations": {"run": run.ulid, "finishedAt": jsonable(run.finished_at)},
        },
        *({"name": f"engine/{arm.name}", "digest": {"sha256": arm.configuration_sha256}} for arm in run.candidates),
    ]
    return {
        "result": "PASSED" if run.exit_code == 0 else "FAILED",
        "configuration": configuration,
        "passedTests": [_test(check) for check in facts.checks if check.verdict is Verdict.CERTIFIED],
        "warnedTests": [],
        "failedTests": [_test(check) for check in facts.checks if check.verdict in failing],
    }


def _test(check: StoredCheck) -> str:
    return f"{check.arm}/{check.check}"


def speculation(facts: AttestedRun) -> dict[str, Any]:
    """The speculation record (`schemas/speculation.json`)."""
    run = facts.run
    return {
        "version": VERSION,
        "run": {
            **named(run, "ulid", "started_at", "finished_at", "exit_code", "tokens", "actor", "code_commit"),
            **named(run, "record_root", "content_root"),
            "environment_sha256": run.environment.sha256,
        },
        "suite": {"name": run.suite_name, "sha256": run.suite_sha256},
        "registered_first": facts.registered_first,
        "registrations": [_registration(item) for item in facts.registrations],
        "models": [named(used, "kind", "role", "name", "revision", "sha256") for used in run.artifacts],
        "arms": [_arm(facts, arm) for arm in run.arms],
        "checks": [
            named(check, "arm", "check", "claim", "verdict", "level", "n", "bound", "margin") for check in facts.checks
        ],
        "log": facts.proof,
        "tool": tool(),
    }


def _registration(item: Any) -> dict[str, Any]:
    registration = item.registration
    return {
        **named(registration, "suite_sha256", "policy_name", "policy_sha256"),
        "at": jsonable(registration.created_at),
        "log_entry": item.entry,
        "before_run": item.precedes,
    }


def _arm(facts: AttestedRun, arm: StoredArm) -> dict[str, Any]:
    settings, counts = governance_of(facts.run, arm), arm.counts
    return {
        "name": arm.name,
        "kind": arm.kind.value,
        "evidence_level": arm.level.name,
        **named(arm, "lossless", "fault", "configuration_sha256"),
        **asdict(settings),
        "requests": counts.requests,
        "directed_requests": counts.directed,
        "output_tokens": counts.output,
        "target_forwards": counts.steps,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "counted_from": counts.source.value,
    }


def eval_result(facts: AttestedRun) -> dict[str, Any]:
    """The shape under discussion: a metric against a threshold over N samples."""
    run = facts.run
    names = {arm.name for arm in facts.candidates}
    failing = sum(
        check.arm in names and check.verdict in (Verdict.FAULT, Verdict.INCONCLUSIVE) for check in facts.checks
    )
    registered = [item.registration for item in facts.registrations if item.precedes]
    return {
        "metric": "specaudit.checks_not_certified",
        "value": failing,
        "comparator": "<=",
        "threshold": 0,
        "passed": failing == 0 and run.exit_code == 0,
        "sampleSize": sum(arm.counts.requests for arm in facts.candidates),
        "evaluatedAt": jsonable(run.finished_at),
        "harness": {**tool(), "uri": "https://specaudit.dev", "codeCommit": run.code_commit},
        "dataset": {"name": run.suite_name, "digest": {"sha256": run.suite_sha256}},
        "sampleRoot": {"algorithm": "rfc6962-sha256", "root": run.record_root},
        "subjectProfile": "public-model",
        "assuranceLevel": "self_attested",
        **({"preRegistration": _preregistration(registered[0])} if registered else {}),
    }


def _preregistration(registration: Any) -> dict[str, Any]:
    return {
        "suite": {"sha256": registration.suite_sha256},
        "policy": {"sha256": registration.policy_sha256},
        "registeredAt": jsonable(registration.created_at),
    }
