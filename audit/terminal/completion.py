"""Completions of a command's arguments: runs, arms, suites and named queries.

A completion reads, within a second, what is there. It never makes a store, waits for a lock or prints a mistake: where
something fails, it offers nothing.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

MOST: Final = 200
"""Runs or arms to offer at most, the newest."""
WAIT_S: Final = 1.0
RUNS: Final = "SELECT ulid, suite_name, started_at FROM run WHERE substr(ulid, 1, length({0})) = {0} ORDER BY id DESC"
ARMS: Final = "SELECT name, MAX(kind) FROM arm GROUP BY name ORDER BY MAX(id) DESC"


def complete_runs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The runs of the store that begin with the text, newest first, and `latest`."""
    result = [
        CompletionItem(run, help=f"{suite}, {str(at)[:16]}") for run, suite, at in _rows(context, RUNS, incomplete)
    ]
    newest = [CompletionItem("latest", help="the newest run")] if "latest".startswith(incomplete) else []
    return newest + result


def complete_arms(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The arms of the command's suite if it has one, else those of the store."""
    # an option without its value stops click's parser before it names the arguments
    suite = context.params.get("suite") or next(iter(context.args), None)
    pairs = _suite_arms(suite) if suite else [(name, kind) for name, kind in _rows(context, ARMS)]
    return [CompletionItem(name, help=kind) for name, kind in pairs if name.startswith(incomplete)]


def complete_queries(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The named queries with what they answer."""
    from audit.store.asking.queries import NAMED

    return [CompletionItem(name, help=query.title) for name, query in NAMED.items() if name.startswith(incomplete)]


def complete_suites(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The packaged suites; the shell adds the files."""
    root = Path(__file__).parents[2] / "suites"
    names = sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.yaml"))
    suites = [name for name in names if not name.startswith("policies/") and name.startswith(incomplete)]
    # files first: in bash this item discards what stands before it
    return [CompletionItem(incomplete, type="file"), *(CompletionItem(name, help="packaged suite") for name in suites)]


def _suite_arms(suite: str) -> list[tuple[str, str]]:
    """Names of the arms that a suite's file lists, without a check of the file."""
    from audit.errors import UserError
    from audit.suite.loader import find_suite
    from audit.text.documents import read_yaml

    try:
        listed = read_yaml(find_suite(suite)).data["arms"]
        return [(str(arm["name"]), "arm of the suite") for arm in listed]
    except (UserError, LookupError, TypeError):
        return []


def _rows(context: click.Context, query: str, *values: str) -> list[Sequence[Any]]:
    """The first rows of a query on the command's store; none where it cannot be asked."""
    from audit.store.base.connection import default_url, is_sqlite, parse_url

    try:
        url = parse_url(str(context.params.get("store") or default_url()))
        result = _sqlite(url.database or "", query, values) if is_sqlite(url) else _postgres(url, query, values)
        return list(result)
    except Exception:  # a shell's completion must print nothing, whatever is wrong with the store
        return []


def _sqlite(database: str, query: str, values: Sequence[str]) -> Iterator[Sequence[Any]]:
    from audit.store.base.connection import readonly_uri

    connection = sqlite3.connect(readonly_uri(Path(database)), uri=True, timeout=WAIT_S)
    try:
        yield from connection.execute(query.format("?1"), values).fetchmany(MOST)
    finally:
        connection.close()


def _postgres(url: Any, query: str, values: Sequence[str]) -> Iterator[Sequence[Any]]:
    import psycopg

    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    asked = query.format("%(at)s::text")
    with psycopg.connect(address, connect_timeout=int(WAIT_S) + 1, options="-c statement_timeout=1000") as connection:
        yield from connection.execute(asked.encode(), {"at": values[0]} if values else None).fetchmany(MOST)
