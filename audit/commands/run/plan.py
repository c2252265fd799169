"""`audit plan`: compares the evidence that checks need with the suite's size. Loads no model and stores nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from audit.suite.loader import load_suite
from audit.terminal.completion import complete_suites
from audit.terminal.options import json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.durations import duration
from audit.text.printer import echo

if TYPE_CHECKING:
    from audit.runs.sizing import PlannedCheck, RunPlan

ARMS = ("arm", "kind", "requests", "tokens", "at most", "time")
CHECKS = ("arm", "check", "needs", "suite gives", "unit", "outcome", "from", "what to do")


@click.command("plan")
@click.argument("suite", shell_complete=complete_suites)
@json_option
@wide_option
@store_option
@click.pass_context
def command(ctx: click.Context, suite: str, as_json: bool, store: str) -> None:
    """Estimate whether SUITE is large enough for its margins, and how long it takes.

    Spreads, lengths and speed come from the newest finished run in the store
    if there is one, else from stated defaults.
    Exit code 0: every check can decide at its margin. 2: the suite is invalid.
    3: a check would end inconclusive.
    """
    loaded = load_suite(suite)
    from audit.evidence.environment import hardware
    from audit.runs.sizing import RunHistory, history, plan
    from audit.store import Store
    from audit.store.base.connection import is_sqlite, parse_url, sqlite_path

    target = parse_url(store)
    past = RunHistory()
    if not is_sqlite(target) or sqlite_path(target).is_file():
        with Store.open(store, create=False, read_only=True) as opened:
            past = history(opened, loaded.name, hardware())
    size = plan(loaded, past)
    if as_json:
        echo_json(size)
    else:
        _print(size)
    ctx.exit(size.exit_code)


def _print(plan: RunPlan) -> None:
    from audit.report.tables.verdicts import marked

    loads = plan.arms
    faults = {load.arm: load.fault for load in loads if load.fault}
    rows = [(a.arm, a.kind.value, a.requests, a.tokens, a.most, duration(a.seconds)) for a in loads]
    echo_rows(ARMS, marked(rows, faults))
    echo("")
    echo_rows(CHECKS, marked([_row(check) for check in plan.checks], faults))
    echo("", f"{plan.tokens} tokens in {duration(plan.seconds)} at {cell(plan.rate)} tokens/s ({plan.rate_from})")
    short = sum(check.outcome == "too_little" for check in plan.checks)
    lacking = sum(check.lacking for check in plan.checks)
    if plan.exit_code == 0:
        echo("ENOUGH: every check can decide at its margin")
    elif short or lacking:
        parts = [f"{short} of {len(plan.checks)} checks would end inconclusive"] if short else []
        parts += [f"{lacking} would not run for want of evidence"] if lacking else []
        echo(f"TOO LITTLE: {', '.join(parts)}")
    else:
        echo("TOO LITTLE: at least one arm has no check that would decide")


def _row(check: PlannedCheck) -> tuple[object, ...]:
    from audit.stats.power import MOST

    if check.need is None:
        return (check.arm, check.check, "any", None, None, check.outcome, check.basis, check.mend or None)
    units = "never" if check.need.units >= MOST else check.need.units
    return (
        *(check.arm, check.check, units, check.given),
        *(check.need.unit, check.outcome.replace("_", " "), check.basis, check.mend or None),
    )
