"""`audit controls`: clauses of laws and standards, and the evidence for them. The mapping itself is data."""

from typing import Any

import click

from audit.report.statements.controls import ClauseEvidence, Controls, evidence, load_controls, words
from audit.report.tables.results import results
from audit.store import Store
from audit.store.base.canonical import named
from audit.terminal.options import complete_runs, store_option
from audit.terminal.tables import echo_json, echo_rows

COLUMNS = ("framework", "clause", "asks for", "evidence for it")
VERSION = 1


@click.command("controls")
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "--format", "form", type=click.Choice(["table", "markdown", "json"]), default="table", help="Output format."
)
@store_option
def command(run: str | None, form: str, store: str) -> None:
    """Show which checks and records are evidence for which clauses of laws and standards.

    With RUN (a ULID, a prefix of one, or latest) each clause has the results of that run. The words are "evidence
    for" a clause; no output states that a system meets one.
    """
    controls = load_controls()
    ulid, held = None, None
    if run is not None:
        with Store.open(store, create=False, read_only=True) as opened:
            ulid = opened.resolve(run)
            held = evidence(controls, results(opened, ulid), len(opened.checkpoints()))
    if form == "json":
        echo_json(_document(controls, ulid, held))
    elif held is None:
        echo_rows(COLUMNS, _rows(controls), form)
    else:
        echo_rows(COLUMNS, [_held_row(clause) for clause in held], form)


def _rows(controls: Controls) -> list[tuple[str, ...]]:
    return [
        (framework.id, clause.id, clause.asks, words(clause))
        for framework in controls.frameworks
        for clause in framework.clauses
    ]


def _held_row(held: ClauseEvidence) -> tuple[str, ...]:
    result = [*held.records.values(), *(f"{check}: {text}" for check, text in held.checks.items())]
    return (held.framework, held.clause.id, held.clause.asks, "; ".join(result))


def _document(controls: Controls, run: str | None, held: tuple[ClauseEvidence, ...] | None) -> dict[str, Any]:
    by_clause = {(result.framework, result.clause.id): result for result in held or ()}
    return {
        "version": VERSION,
        "run": run,
        "frameworks": [
            {
                **named(framework, "id", "title", "note"),
                "clauses": [
                    {
                        "clause": clause.id,
                        **named(clause, "asks", "source", "read"),
                        "evidence": named(by_clause.get((framework.id, clause.id), clause), "records", "checks"),
                    }
                    for clause in framework.clauses
                ],
            }
            for framework in controls.frameworks
        ],
        "unmapped": dict(controls.unmapped),
    }
