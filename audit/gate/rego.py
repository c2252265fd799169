"""Rego modules beside a policy: they see the facts of a decision as JSON and can only make it stricter.

Whatever a module says or fails to say, it adds reasons and takes none away. It is evaluated in a process without
environment variables, with limits on time, memory and output. `schemas/gate-facts.json` is the reference of the facts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from audit.gate.decision import GateOutcome, Reason, blocked, remark, undecided
from audit.gate.facts import RunFacts
from audit.gate.judgement import GateRequest, RegoModule
from audit.store import StoredArm
from audit.store.base.canonical import jsonable, named
from engine.core.child import ChildStopped, Script, run_script

MEMORY_BYTES: Final = 2**29
"""The caller watches it: the engine's allocator reserves too much for a limit of its own."""
TIMEOUT_S: Final = 10
"""Seconds of processor time and of the clock that a module may take."""
WORKER: Final = Path(__file__).with_name("rego_worker.py")


class RegoFailure(Exception):
    """A module that gives no answer; the message says why."""


def evaluate(
    module: RegoModule, document: Mapping[str, Any], timeout_s: int = TIMEOUT_S
) -> tuple[bool, tuple[str, ...]]:
    """The answer of a module on the facts of a decision: `allow`, and reasons to deny.

    Raises:
        RegoFailure: it does not compile, breaks a limit, or does not define `allow` and `deny` as it must.
    """
    script = Script(str(WORKER), timeout_s, MEMORY_BYTES)
    try:
        answer = run_script(script, {"module": module.text, "input": document}, str(timeout_s))
    except ChildStopped as stopped:
        raise RegoFailure(_ended(stopped, timeout_s)) from stopped
    if "error" in answer:
        raise RegoFailure(str(answer["error"]))
    rules = answer["value"]
    if not isinstance(rules, dict):
        raise RegoFailure("package specaudit has no rules")
    allow, deny = rules.get("allow"), rules.get("deny")
    if not isinstance(allow, bool):
        raise RegoFailure("rule allow is undefined or no boolean; begin with: default allow := false")
    if not isinstance(deny, list) or not all(isinstance(reason, str) for reason in deny):
        raise RegoFailure("rule deny is undefined or no set of texts; write: deny contains reason if ...")
    return allow, tuple(deny)


def _ended(stopped: ChildStopped, timeout_s: int) -> str:
    if stopped.limit == "memory":
        return f"its evaluation took more than {MEMORY_BYTES >> 20} MiB of memory"
    if stopped.limit == "time":
        return f"its evaluation took longer than {timeout_s} s"
    return f"its evaluation ended with exit code {stopped.code}" if stopped.code else "its evaluation gave no answer"


REGO: Final = "rego"
MOST_REASONS: Final = 50
MOST_CHARACTERS: Final = 500


def rego_reasons(facts: RunFacts, request: GateRequest, outcome: GateOutcome) -> Iterator[Reason]:
    """Why the modules do not let the deployment through, after what the policy alone decided."""
    given = {module.sha256 for module in request.rego}
    for sha256 in request.policy.parts.rego:
        if sha256 not in given:
            yield undecided(REGO, f"the policy requires the Rego module sha256:{sha256}; add --rego FILE")
    if request.rego:
        document = facts_document(facts, request, outcome)
        for module in request.rego:
            yield from reasons_of(module, document)


def reasons_of(module: RegoModule, document: Mapping[str, Any]) -> Iterator[Reason]:
    """A module's answer as reasons, the last of which says that it was evaluated."""
    requirement = f"{REGO} {module.name}"
    try:
        allow, deny = evaluate(module, document)
    except RegoFailure as error:
        yield undecided(requirement, f"sha256:{module.sha256}: {error}")
        return
    yield from (blocked(requirement, text[:MOST_CHARACTERS]) for text in deny[:MOST_REASONS])
    if len(deny) > MOST_REASONS:
        yield blocked(requirement, f"{len(deny) - MOST_REASONS} more reasons")
    if not allow and not deny:
        yield blocked(requirement, "rule allow is false")
    yield remark(requirement, f"sha256:{module.sha256} was evaluated")


VERSION: Final = 1
CHECK_FACTS: Final = (
    *("arm", "check", "claim", "level", "verdict"),
    *("n", "statistic", "p_value", "effect", "bound", "margin"),
)


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
            **named(run, "actor", "code_commit", "record_root", "content_root", "tokens", "exit_code"),
            "packages": jsonable(run.environment.packages),
        },
        "models": [named(used, "kind", "role", "name", "revision", "sha256") for used in run.artifacts],
        "arms": [_arm(facts, arm) for arm in run.arms],
        "checks": [named(check, *CHECK_FACTS) for check in facts.checks],
        "broken": list(facts.broken),
        "verdicts": "stored" if request.trust_verdicts else "recomputed",
        "signed_by": facts.ending.by,
        "subjects": [named(subject, "role", "sha256") for subject in request.subjects],
        "serves": list(request.serving.serves),
        "policy": named(policy, "name", "sha256"),
        "decision": outcome.answer.value,
        "reasons": [named(reason, "answer", "requirement", "text") for reason in outcome.reasons],
    }


def _arm(facts: RunFacts, arm: StoredArm) -> dict[str, Any]:
    counts, parameters = arm.counts, facts.parameters.get(arm.name, {})
    return {
        **named(arm, "name", "kind", "level", "lossless", "spec", "configuration_sha256"),
        "requests": counts.requests,
        "output_tokens": counts.output,
        "target_forwards": counts.steps,
        **named(counts, "drafted", "accepted"),
        "coverage": dict(facts.coverage.get(arm.name, {})),
        "workload": jsonable(facts.workloads.get(arm.name)),
        "parameters": {check: jsonable(given.used) for check, given in parameters.items()},
    }
