"""Options that several commands share, and completions of a command's arguments: runs, arms, suites and named queries.

A completion reads, within a second, what is there. It never makes a store, waits for a lock or prints a mistake: where
something fails, it offers nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from audit.errors import UserError
from audit.terminal.tables import WIDE
from audit.text.durations import parse_duration
from audit.text.unsafe import quoted

if TYPE_CHECKING:
    from audit.suite.allowances import Allowances

F = TypeVar("F", bound=Callable[..., Any])
PATH: Final = click.Path(path_type=Path)
"""The type of an option that names a file or a folder, which need not exist."""
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

    with closing(sqlite3.connect(readonly_uri(Path(database)), uri=True, timeout=WAIT_S)) as connection:
        yield from connection.execute(query.format("?1"), values).fetchmany(MOST)


def _postgres(url: Any, query: str, values: Sequence[str]) -> Iterator[Sequence[Any]]:
    import psycopg

    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    asked = query.format("%(at)s::text")
    with psycopg.connect(address, connect_timeout=int(WAIT_S) + 1, options="-c statement_timeout=1000") as connection:
        yield from connection.execute(asked.encode(), {"at": values[0]} if values else None).fetchmany(MOST)


def _default_store() -> str:
    # imported late: commands without a store, whose modules share other options, need no database library
    from audit.store.base.connection import default_url

    return default_url()


def store_option(function: F) -> F:
    """`--store URL`, from `AUDIT_STORE` or the user's data folder by default."""
    return click.option(
        "--store",
        metavar="URL",
        envvar="AUDIT_STORE",
        show_envvar=True,
        default=_default_store,
        show_default="audit.db in the user's data folder",
        help="Provenance store: a path, sqlite:///FILE, or postgresql://HOST/DATABASE.",
    )(function)


def policy_digest(text: str | None) -> str | None:
    """The hex digest that `--policy-digest` gives. Raises UserError: another text."""
    # imported here: most commands that have options of this file read no document
    from audit.gate.subjects import hex_digest

    return None if text is None else hex_digest(text, f"--policy-digest {quoted(text)}")


def json_option(function: F) -> F:
    """`--json`: machine-readable output on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(function)


def form_options(function: F) -> F:
    """`--verbose` and `--json`: every verdict as a table, or the whole result, instead of a summary."""
    whole = click.option("--json", "form", flag_value="json", help="Print what results.json holds.")
    verbose = click.option("-v", "--verbose", "form", flag_value="table", help="Print every arm and every verdict.")
    return verbose(whole(function))


def wide_option(function: F) -> F:
    """`--wide`: one line per table row, even on a narrow terminal."""
    return click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _parameter, wide: context.meta.update({WIDE: wide}),
        help="Print one line per table row. By default, long texts wrap on a terminal or if COLUMNS is set.",
    )(function)


def deadline(text: str, now: datetime) -> datetime:
    """A moment after `now`: a duration from it, or a date or time in ISO 8601, in UTC unless it has a zone.

    Raises:
        UserError: another text, or a moment that is over.
    """
    duration = parse_duration(text)
    try:
        end = datetime.fromisoformat(text) if duration is None else now + duration
        end = (end if end.tzinfo else end.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        problem = "write a duration like 30d or 12h, or a date like 2027-01-31"
        raise UserError(f"--expires {quoted(text)}: {problem}") from error
    if end <= now:
        raise UserError(f"--expires {quoted(text)}: that is over; name a later moment")
    return end


ALLOWED: Final = "specaudit_allowed"
OPTIONS: Final = (
    ("--allow-env", "env", "NAME", "A variable of the environment that the suite may send as API key."),
    ("--allow-host", "hosts", "HOST[:PORT]", "A host that the suite may send requests to."),
    ("--allow-engine-python", "engine_python", "PATH", "An interpreter that the suite may start an engine with."),
    ("--allow-engine-code", "engine_code", "NAME", "Code that the suite may have its engine load."),
)


def allow_options(function: F) -> F:
    """`--allow-env`, `--allow-host`, `--allow-engine-python`, `--allow-engine-code`: what a suite may touch."""
    for option, key, metavar, text in reversed(OPTIONS):
        function = click.option(
            option,
            key,
            metavar=metavar,
            multiple=True,
            expose_value=False,
            callback=_keep_allowed,
            help=f"{text} Repeat for more.",
        )(function)
    return function


def _keep_allowed(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    context.meta.setdefault(ALLOWED, {})[str(parameter.name)] = values


def given_options(context: click.Context) -> list[str]:
    """The options as they were given, for a process that runs the same suite."""
    given = context.meta[ALLOWED]
    return [part for option, key, *_ in OPTIONS for value in given.get(key, ()) for part in (option, value)]


def allowed(context: click.Context) -> Allowances:
    """Allowances of the command line and the user's configuration.

    Raises:
        UserError: a host that is none, or a mistake in the configuration.
    """
    # imported late: parsing a command line reads no configuration
    from audit.suite.allowances import Allowances, configured, require_host

    given = Allowances(**context.meta[ALLOWED])
    for host in given.hosts:
        require_host(host)
    return given + configured()
