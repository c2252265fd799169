"""`audit plan`: compares the evidence that checks need with the suite's size. Only a trial loads models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from audit.suite.loader import load_suite
from audit.terminal.options import allow_options, allowed, complete_suites, json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.durations import duration
from audit.text.printer import echo

if TYPE_CHECKING:
    from audit.gate.policy import Policy
    from audit.runs.sizing import PlannedCheck, RunHistory, RunPlan
    from audit.suite.spec import Suite

ARMS = ("arm", "kind", "requests", "tokens", "at most", "directed", "time")
CHECKS = ("arm", "check", "needs", "suite gives", "unit", "outcome", "from", "what to do")


@click.command("plan")
@click.argument("suite", shell_complete=complete_suites)
@click.option("--trial", is_flag=True, help="First run some of the cases, and plan with their lengths and speed.")
@click.option("--policy", metavar="FILE", help="Say too which counts of this policy the suite would not give.")
@allow_options
@json_option
@wide_option
@store_option
@click.pass_context
def command(ctx: click.Context, suite: str, trial: bool, policy: str | None, as_json: bool, store: str) -> None:
    """Estimate whether SUITE is large enough for its margins, and how long it takes.

    Spreads, lengths and speed come from the newest finished run in the store
    if there is one, else from stated defaults. With --trial, some of the
    suite's cases run through every arm, in a store of its own that is
    removed afterwards; lengths and speed come from there.
    Exit code 0: every check can decide at its margin. 2: the suite is invalid.
    3: a check would end inconclusive, or the policy could not decide.
    """
    loaded = load_suite(suite)
    from audit.gate.policy import load_policy
    from audit.report.tables.looks import UNDECIDED
    from audit.runs.sizing import plan

    decides = None if policy is None else load_policy(policy)
    size = plan(loaded, _trial(ctx, loaded) if trial else _history(loaded, store))
    if decides is not None and (lacks := tuple(_lacks(size, len(loaded.cases), decides))):
        size = replace(size, lacks=lacks, exit_code=UNDECIDED)
    if as_json:
        echo_json(size)
    else:
        _print(size)
    ctx.exit(size.exit_code)


def _trial(ctx: click.Context, suite: Suite) -> RunHistory:
    from audit.runs.trial import trial
    from audit.terminal.run_session import progress

    with progress() as shown:
        return trial(suite, shown, allowed(ctx))


def _history(suite: Suite, store: str) -> RunHistory:
    from audit.evidence.environment import hardware
    from audit.runs.sizing import RunHistory, history
    from audit.store import Store
    from audit.store.base.connection import is_sqlite, parse_url, sqlite_path

    target = parse_url(store)
    past = RunHistory()
    if not is_sqlite(target) or sqlite_path(target).is_file():
        with Store.open(store, create=False, read_only=True) as opened:
            past = history(opened, suite.name, hardware())
    return past


def _lacks(size: RunPlan, cases: int, policy: Policy) -> Iterator[str]:
    """The counts of a policy that the planned arms would not reach."""
    from audit.evidence.records import ArmKind
    from audit.gate.rules.workload import WORDS

    arms = [load for load in size.arms if load.kind is ArmKind.CANDIDATE]
    for load in arms:
        given = {"tokens": load.tokens, "requests": load.requests, "prompts": cases, "verified_drafts": load.drafted}
        for name, count in given.items():
            least = getattr(policy.parts.workload, name)
            if least is not None and count < least:
                yield f"arm {load.arm}: about {count} {WORDS[name]}, {least} are required"
    total = sum(load.tokens for load in arms)
    if total < policy.min_tokens:
        yield f"about {total} emitted tokens of all candidates, {policy.min_tokens} are required"


def _print(plan: RunPlan) -> None:
    from audit.report.tables.verdicts import marked

    loads = plan.arms
    faults = {load.arm: load.fault for load in loads if load.fault}
    rows = [(a.arm, a.kind.value, a.requests, a.tokens, a.most, a.directed, duration(a.seconds)) for a in loads]
    echo_rows(ARMS, marked(rows, faults))
    echo("")
    echo_rows(CHECKS, marked([_row(check) for check in plan.checks], faults))
    echo("", f"{plan.tokens} tokens in {duration(plan.seconds)} at {cell(plan.rate)} tokens/s ({plan.rate_from})")
    echo(*(f"the policy could not decide: {lack}" for lack in plan.lacks))
    short = sum(check.outcome == "too_little" for check in plan.checks)
    lacking = sum(check.lacking for check in plan.checks)
    parts = [f"{short} of {len(plan.checks)} checks would end inconclusive"] if short else []
    parts += [f"{lacking} would not run for want of evidence"] if lacking else []
    parts += ["the policy requires more"] if plan.lacks else []
    words = ", ".join(parts) or "at least one arm has no check that would decide"
    echo("ENOUGH: every check can decide at its margin" if plan.exit_code == 0 else f"TOO LITTLE: {words}")


def _row(check: PlannedCheck) -> tuple[object, ...]:
    from audit.stats.power import MOST

    if check.need is None:
        needs: tuple[object, ...] = ("any", None, None)
    else:
        units = "never" if check.need.units >= MOST else check.need.units
        needs = (units, check.given, check.need.unit)
    return (check.arm, check.check, *needs, check.outcome.replace("_", " "), check.basis, check.mend or None)
