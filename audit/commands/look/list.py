"""`audit list`: the runs of a store, newest first."""

import click

from audit.store import RunSummary, Store
from audit.terminal.options import json_option, store_option, wide_option
from audit.terminal.tables import echo_json, echo_rows
from audit.text.printer import note

COLUMNS = ("run", "suite", "status", "started (UTC)", "arms", "requests", "tokens", "verdicts", "exit")


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="Most runs to print.")
@json_option
@wide_option
@store_option
def command(limit: int, as_json: bool, store: str) -> None:
    """List the newest runs of a store."""
    with Store.open(store, create=False, read_only=True) as opened:
        runs = opened.list_runs(limit)
        if as_json:
            echo_json(runs)
        elif runs:
            echo_rows(COLUMNS, [_row(run) for run in runs])
        else:
            note("the store has no runs yet; make one: audit run SUITE")


def _row(run: RunSummary) -> tuple[object, ...]:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(run.verdicts.items()))
    counts = (run.arms, run.requests, run.tokens)
    return (run.ulid, run.suite_name, run.status, run.started_at, *counts, verdicts or "-", run.exit_code)
