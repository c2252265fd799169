"""`audit coverage`: the situations that a run met, and how often its checks examined them."""

import click

from audit.report.tables.coverage import BY_CHECK, SITUATIONS, check_rows, in_order, situation_rows
from audit.store import Store
from audit.terminal.options import complete_runs, json_option, store_option, wide_option
from audit.terminal.tables import echo_json, echo_rows
from audit.text.printer import note


@click.command("coverage")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option("--by-check", is_flag=True, help="One row per check, not only the check that examined least.")
@click.option("--all", "everything", is_flag=True, help="Also situations that neither occurred nor have a floor.")
@json_option
@wide_option
@store_option
def command(run: str, by_check: bool, everything: bool, as_json: bool, store: str) -> None:
    """Show the situations that RUN met and how often its checks examined each."""
    with Store.open(store, create=False, read_only=True) as opened:
        coverage = opened.coverage(opened.resolve(run))
        ordered = in_order(coverage, everything=everything)
        rows = check_rows(ordered) if by_check else situation_rows(ordered)
        if as_json:
            echo_json(coverage)
        elif not coverage:
            note("the record of this run shows no steps of speculation")
        else:
            echo_rows(BY_CHECK if by_check else SITUATIONS, rows)
