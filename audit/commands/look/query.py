"""`audit query`: named questions and read-only SQL."""

import re
from pathlib import Path
from typing import Any

import click

from audit.errors import UserError
from audit.store import Store
from audit.store.asking.queries import NAMED, named
from audit.store.asking.query_sandbox import QueryLimits, QueryResult, ask
from audit.terminal.options import PATH, complete_queries, store_option, wide_option
from audit.terminal.tables import FORMATS, PARQUET, RAW_CSV, echo_rows, save_rows
from audit.text.printer import note


@click.command("query")
@click.argument("name", required=False, shell_complete=complete_queries)
@click.option("--list", "listing", is_flag=True, help="List the named queries.")
@click.option("--sql", metavar="TEXT", help="Run one SELECT of your own; see docs/store.md for the views.")
@click.option("--param", "pairs", metavar="NAME=VALUE", multiple=True, help="Parameter; `run` defaults to latest.")
@click.option("--format", "form", type=click.Choice([*FORMATS, PARQUET]), default="table", show_default=True)
@click.option("--raw", is_flag=True, help="With `csv`: cells as stored, for programs; a spreadsheet computes some.")
@click.option("--out", type=PATH, metavar="FILE", help="Write to FILE; `parquet` needs it.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True, help="Seconds."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000_000), default=10_000, show_default=True, help="Rows to print at most."
)
@click.option("--superuser", is_flag=True, help="Run --sql even as a superuser of PostgreSQL; trust it first.")
@wide_option
@store_option
def command(
    name: str | None,
    listing: bool,
    sql: str | None,
    pairs: tuple[str, ...],
    form: str,
    raw: bool,
    out: Path | None,
    timeout: float,
    limit: int,
    superuser: bool,
    store: str,
) -> None:
    """Query the store: NAME is one of the named queries, or give --sql."""
    if form == PARQUET and out is None:
        raise UserError("--format parquet is no text; name a file for it: --out FILE.parquet")
    if raw and form != "csv":
        raise UserError(f"--raw is for --format csv; {form} has no cells that a spreadsheet computes")
    form = RAW_CSV if raw else form
    if listing:
        _print(QueryResult(("name", "parameters", "answers"), tuple(map(_listed, NAMED)), cut=False), form, out, limit)
        return
    if (name is None) == (sql is None):
        raise UserError("give either the name of a query or --sql; see: audit query --list")
    given = _params(pairs)
    with Store.open(store, create=False, read_only=True) as opened:
        if name is not None:
            sql, given = named(name, given)
        if name is not None or "run" in given:
            given["run"] = opened.resolve(str(given.get("run", "latest")))
    # a named query is our own
    rows = ask(store, str(sql), given, QueryLimits(timeout, limit, superuser or name is not None))
    _print(rows, form, out, limit)


def _print(rows: QueryResult, form: str, out: Path | None, limit: int) -> None:
    if out is None:
        echo_rows(rows.columns, rows.rows, form)
    else:
        save_rows(rows.columns, rows.rows, form, out)
    if rows.cut:
        note(f"only the first {limit} rows are printed; raise --limit for more")


def _listed(name: str) -> tuple[str, str, str]:
    query = NAMED[name]
    params = ["run=latest", *(f"{key}={value}" for key, value in query.params.items())]
    return (name, " ".join(params), query.title)


def _params(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse `NAME=VALUE` pairs; integers become numbers."""
    params: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"--param {pair!r}: write NAME=VALUE")
        params[key] = int(value) if re.fullmatch(r"-?\d{1,18}", value) and key != "run" else value
    return params
