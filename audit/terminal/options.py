"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from audit.errors import UserError
from audit.terminal.tables import WIDE
from audit.text.durations import parse_duration
from audit.text.unsafe import quoted

if TYPE_CHECKING:
    from audit.suite.allowances import Allowances

F = TypeVar("F", bound=Callable[..., Any])


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
    """The hex digest that `--policy-digest` gives.

    Raises:
        UserError: another text.
    """
    # imported here: most commands that have options of this file read no document
    from audit.gate.subjects import DIGEST

    if text is not None and not DIGEST.fullmatch(text):
        raise UserError(f"--policy-digest {quoted(text)}: not a digest; write sha256: and 64 lower-case hex digits")
    return text and text.removeprefix("sha256:")


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
        callback=_keep_wide,
        help="Print one line per table row. By default, long texts wrap on a terminal or if COLUMNS is set.",
    )(function)


def _keep_wide(context: click.Context, _parameter: click.Parameter, wide: bool) -> None:
    context.meta[WIDE] = wide


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
