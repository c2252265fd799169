"""The next step after a reason: a command, or a change of the suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from audit.gate.decision import Decision, Reason

STEPS: Final[Mapping[str, str]] = {
    "record": "audit db check {run} names every place; run the suite again, or restore the store from a copy",
    "run": "audit list shows the runs; audit resume {run} goes on with an interrupted one",
    "max_age": "run the suite again: audit run SUITE",
    "min_tokens": "raise samples, max_new_tokens or the workloads' limits in the suite, and run it again",
    "suites": "run a suite that the policy lists, or have this one approved: add its digest to evidence.suites",
    "arms": "run the whole suite again: audit run SUITE",
    "signed": "sign the log: audit db checkpoint --key KEY --out NOTE, and give --checkpoint NOTE",
    "policy": "give the policy whose digest the deployment expects",
    "known_bad": "remove the fault from the suite",
    "lossless": "deploy a lossless rule, or use a policy without require_lossless",
    "speculation": "audit show {run} has the counts; let the arm draft, and let the target accept",
    "workload": "enlarge the suite's workloads and run it again",
    "deployed": "run the suite as the deployment runs: batch_size, gamma, proposer, numerics, machine",
    "floors": "audit show {run} has the counts; audit sweep SUITE finds the fastest draft length",
    "require": "add a requirement to the policy that selects the arm",
    "accounts": "list a check that judges the quantity, or waive it in the suite: checks: {{second_accounts: ...}}",
    "coverage": "audit coverage {run} shows the situations; the page of each says how a suite meets it",
    "parameters": "set the parameter in the suite to what the policy accepts, and run it again",
    "reviews": "ask for a review: audit review {run} --outcome approve --role ROLE --comment TEXT --key KEY",
    "gate": "report this with the output of: audit doctor",
}
"""By requirement; `{run}` stands for the run."""
WATCH: Final[Mapping[Decision, str]] = {
    Decision.BLOCK: "audit watch URL --show has the days; find the cause, or have a waiver signed: audit waive {run}",
    Decision.CANNOT_DECIDE: "watch the server: audit watch URL --run {run}, or with --once from cron",
}
"""By answer, for the requirement `watched`."""


def next_step(reason: Reason, run: str) -> str | None:
    """The step after a reason; None for a remark."""
    if reason.answer is Decision.ALLOW:
        return None
    step = STEPS.get(reason.requirement)
    if step is None:
        step = _of_kind(reason)
    return step.format(run=run)


def _of_kind(reason: Reason) -> str:
    if reason.requirement.startswith("subject "):
        return "deploy the files that were audited, or audit those that will be deployed"
    if reason.requirement.partition(" ")[0] == "rego":
        return "audit schema gate-facts describes the module's input; a policy lists modules by digest under rego"
    if reason.requirement.startswith("serves "):
        return "add such an arm to the suite, or name what the deployment serves: --serves"
    if reason.requirement == "watched":
        return WATCH[reason.answer]
    if reason.answer is Decision.BLOCK:
        return "audit show {run} has the findings, audit minimize {run} finds a small reproducer"
    return "add the check to the suite's arm and run it again; audit show {run} says why one did not run"
