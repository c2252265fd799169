"""Judge a run in a store and record the decision.

The store records every decision, whatever its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from audit.errors import CannotDecide, UserError
from audit.evidence.verdicts import Verdict
from audit.gate.decide import Decision, GateOutcome, Reason, RunFacts, decide
from audit.gate.policy import Policy
from audit.gate.subjects import Subject
from audit.store import Store, StoredCheck, StoredCoverage, StoredDecision, StoredRun


@dataclass(frozen=True, slots=True)
class GateJudgement:
    """A decision with its inputs. `run` is None if the store has no such run."""

    run: StoredRun | None
    outcome: GateOutcome
    policy: Policy
    subjects: tuple[Subject, ...]
    actor: str
    at: datetime


def judge(
    store: Store,
    name: str,
    policy: Policy,
    subjects: Sequence[Subject],
    actor: str,
    now: datetime,
    *,
    no_subject: bool = False,
) -> GateJudgement:
    """Decide on the run called `name` (a ULID, a prefix of one, or latest) and record the decision.

    `no_subject` waives the roles that the policy wants named; the waivers are among the recorded reasons.
    """
    run: StoredRun | None = None
    try:
        facts = read_facts(store, store.resolve(name))
        run = facts.run
        outcome = decide(facts, policy, subjects, now, no_subject=no_subject)
    except (UserError, CannotDecide) as error:
        outcome = GateOutcome(Decision.CANNOT_DECIDE, (Reason(Decision.CANNOT_DECIDE, "run", str(error)),))
    judgement = GateJudgement(run, outcome, policy, tuple(subjects), actor, now)
    store.add_decision(_stored(judgement))
    return judgement


def read_facts(store: Store, run: str) -> RunFacts:
    """The facts for a decision on a run; recomputes every hash of its record."""
    broken = tuple(f"{each.place}: {each.message}" for each in store.broken_places(run))
    checks = store.checks(run)
    return RunFacts(store.load_run(run), checks, broken, certified_coverage(checks, store.coverage(run)))


def certified_coverage(
    checks: Iterable[StoredCheck], coverage: Iterable[StoredCoverage]
) -> Mapping[str, Mapping[str, int]]:
    """By arm and situation, the fewest examinations by any certified check whose claim covers the situation.

    The fewest, because a fault that one check alone can see stays unseen where that check did not look.
    """
    certified = {(check.arm, check.check) for check in checks if check.verdict is Verdict.CERTIFIED}
    found: dict[str, dict[str, int]] = {}
    for row in coverage:
        if (row.arm, row.check) in certified:
            counts = found.setdefault(row.arm, {})
            counts[row.situation] = min(row.examined, counts.get(row.situation, row.examined))
    return found


def _stored(judgement: GateJudgement) -> StoredDecision:
    return StoredDecision(
        run=judgement.run.ulid if judgement.run else None,
        policy_sha256=judgement.policy.sha256,
        policy=judgement.policy.document,
        decision=judgement.outcome.answer.value,
        reasons=tuple(str(reason) for reason in judgement.outcome.reasons),
        actor=judgement.actor,
        created_at=judgement.at,
    )


def to_json(judgement: GateJudgement) -> dict[str, Any]:
    """The decision as `audit gate --format json` prints it."""
    outcome = judgement.outcome
    return {
        "version": 1,
        "decision": outcome.answer.value,
        "exit_code": outcome.answer.exit_code,
        "run": judgement.run.ulid if judgement.run else None,
        "record_root": judgement.run.record_root if judgement.run else None,
        "policy": {"name": judgement.policy.name, "sha256": judgement.policy.sha256},
        "subjects": [{"role": each.role, "sha256": each.sha256, "origin": each.origin} for each in judgement.subjects],
        "reasons": [
            {"answer": each.answer.value, "requirement": each.requirement, "text": each.text}
            for each in outcome.reasons
        ],
        "actor": judgement.actor,
        "at": judgement.at.isoformat(),
    }
