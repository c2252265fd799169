"""The options that say what a suite may touch outside itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from audit.suite.allowances import Allowances

ALLOWED: Final = "specaudit_allowed"
F = TypeVar("F", bound=Callable[..., Any])


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
