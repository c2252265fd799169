"""`audit judge`: the verdicts of a stored run, computed again from its record."""

import click

from audit.store import Store
from audit.terminal.options import complete_runs, json_option, store_option, wide_option
from audit.terminal.tables import echo_json, echo_rows
from audit.text.printer import echo, note

COLUMNS = ("arm", "check", "what differs")


@click.command("judge")
@click.argument("run", default="latest", shell_complete=complete_runs)
@json_option
@wide_option
@store_option
@click.pass_context
def command(ctx: click.Context, run: str, as_json: bool, store: str) -> None:
    """Judge RUN again from its record, store the new verdicts beside the old ones, and print what differs.

    Neither models nor the suite's file are needed. The checks are those of this version with the run's parameters and
    floors. `audit gate` and `audit show` then rely on the new verdicts; the old ones stay in the store.

    Exit code 0: the verdicts are the same; 1: a verdict differs.
    """
    # imported late: the checks need numpy and scipy
    from audit.runs.rejudge import judge_again

    with Store.open(store, create=False) as opened:
        name = opened.resolve(run)
        rejudged = judge_again(opened, name, lambda arm: note(f"checking {arm}"))
        if as_json:
            echo_json(rejudged)
        else:
            note(*rejudged.arms.unknown)
            if rejudged.differences:
                echo_rows(
                    COLUMNS,
                    [
                        (difference.arm, difference.check, "; ".join(difference.changes))
                        for difference in rejudged.differences
                    ],
                )
            same = len(rejudged.results) - len(rejudged.differences)
            echo(f"{same} of {len(rejudged.results)} results are as before; run {name}")
        ctx.exit(1 if any(difference.verdict for difference in rejudged.differences) else 0)
