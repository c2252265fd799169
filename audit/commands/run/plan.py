"""`audit plan`: compares the evidence that checks need with the suite's size. Loads no model and stores nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from audit.suite.loader import load_suite
from audit.suite.unreachable_situations import warnings
from audit.terminal.completion import complete_suites
from audit.terminal.options import json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.durations import duration
from audit.text.printer import echo, note

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
    if there is one, else from stated defaults. Warns of situations that the
    suite cannot reach.
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
    found = plan(loaded, past)
    if as_json:
        echo_json(found)
    else:
        _print(found)
    for line in warnings(loaded):
        note(line)
    ctx.exit(found.exit_code)


def _print(found: RunPlan) -> None:
    from audit.report.tables.verdicts import marked

    loads = found.arms
    faults = {load.arm: load.fault for load in loads if load.fault}
    rows = [(a.arm, a.kind.value, a.requests, a.tokens, a.most, duration(a.seconds)) for a in loads]
    echo_rows(ARMS, marked(rows, faults))
    echo("")
    echo_rows(CHECKS, marked([_row(each) for each in found.checks], faults))
    echo("", f"{found.tokens} tokens in {duration(found.seconds)} at {cell(found.rate)} tokens/s ({found.rate_from})")
    short = sum(each.outcome == "too_little" for each in found.checks)
    lacking = sum(each.lacking for each in found.checks)
    if found.exit_code == 0:
        echo("ENOUGH: every check can decide at its margin")
    elif short or lacking:
        parts = [f"{short} of {len(found.checks)} checks would end inconclusive"] if short else []
        parts += [f"{lacking} would not run for want of evidence"] if lacking else []
        echo(f"TOO LITTLE: {', '.join(parts)}")
    else:
        echo("TOO LITTLE: at least one arm has no check that would decide")


def _row(each: PlannedCheck) -> tuple[object, ...]:
    from audit.stats.power import MOST

    if each.need is None:
        return (each.arm, each.check, "any", None, None, each.outcome, each.basis, each.mend or None)
    units = "never" if each.need.units >= MOST else each.need.units
    return (
        *(each.arm, each.check, units, each.given),
        *(each.need.unit, each.outcome.replace("_", " "), each.basis, each.mend or None),
    )
