"""`audit checklist`: what production asks of a run, answered from its evidence or named as missing."""

import click

from audit.report.statements.checklist import ChecklistItem, Production, Standing, checklist
from audit.store import Store
from audit.terminal.options import complete_runs, json_option, store_option
from audit.terminal.tables import echo_json
from audit.text.printer import echo
from audit.text.unsafe import visible

UNANSWERED = 3


@click.command("checklist")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Requests at once in production.")
@click.option("--context", type=click.IntRange(min=1), metavar="TOKENS", help="Longest prompt with answer there.")
@click.option("--require-all", is_flag=True, help="Exit 3 unless every question is answered.")
@json_option
@store_option
@click.pass_context
def command(
    caller: click.Context,
    run: str,
    concurrency: int | None,
    context: int | None,
    require_all: bool,
    as_json: bool,
    store: str,
) -> None:
    """Answer what production asks of RUN from its evidence, or name what is missing.

    shown: the record answers the question. short: something is on record, but not what the question asks for. missing:
    nothing is. The last line of an item says what would answer it. A verdict is not part of it; `audit gate` decides.
    """
    with Store.open(store, create=False, read_only=True) as opened:
        items = checklist(opened, opened.resolve(run), Production(concurrency, context))
    if as_json:
        echo_json(items)
    else:
        echo(*(line for item in items for line in _lines(item)))
    if require_all and any(item.standing is not Standing.SHOWN for item in items):
        caller.exit(UNANSWERED)


def _lines(item: ChecklistItem) -> list[str]:
    lines = [f"{item.standing.value:8}{item.question}", f"        {visible(item.answer)}"]
    return [*lines, f"        next: {visible(item.next)}"] if item.next else lines
