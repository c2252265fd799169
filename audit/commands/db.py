"""`audit db`: the store's revision and integrity."""

from __future__ import annotations

import click

from audit.commands.completion import complete_runs
from audit.commands.options import store_option
from audit.commands.redact import redact
from audit.commands.tables import cell
from audit.store import Store, migrate
from audit.store.connection import parse_url, shown


@click.group("db")
def command() -> None:
    """Maintain the provenance store."""


@command.command("upgrade")
@store_option
def upgrade(store: str) -> None:
    """Create the store, or upgrade it to the revision that this version needs."""
    migrate.upgrade(store)
    click.echo(f"{shown(parse_url(store))}: revision {migrate.current(store)}")


@command.command("current")
@store_option
def current(store: str) -> None:
    """Print the store's revision."""
    click.echo(migrate.current(store))


@command.command("check")
@click.argument("runs", nargs=-1, shell_complete=complete_runs)
@store_option
def check(runs: tuple[str, ...], store: str) -> None:
    """Recompute every hash of RUNS (default: all finished runs); exit 1 if anything changed."""
    with Store.open(store, create=False, read_only=True) as opened:
        broken = opened.damage(tuple(opened.resolve(run) for run in runs))
        erased = opened.erased_requests()
    for each in broken:
        click.echo(f"{cell(each.place)}: {cell(each.message)}")
    click.echo(f"{opened.url}: {'whole' if not broken else f'{len(broken)} places are not as they were'}")
    if erased:
        click.echo(f"content of {erased} requests was erased, on record")
    raise SystemExit(1 if broken else 0)


command.add_command(redact)
