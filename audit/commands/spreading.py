"""The options that spread the requests of a run over workers, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from audit.errors import UserError
from audit.executors.catalogue import EXECUTORS, LOCAL, executor

if TYPE_CHECKING:
    from audit.runs.prepare import PreparedRun
    from audit.runs.runner import Fill
    from audit.suite.allowances import Allowances

F = TypeVar("F", bound=Callable[..., Any])


def worker_options(function: F) -> F:
    """`--executor NAME` and `--workers N`."""
    where = click.option(
        "--executor",
        "executor_name",
        type=click.Choice(list(EXECUTORS)),
        default=LOCAL,
        show_default=True,
        help="Where workers run.",
    )
    number = click.option(
        "--workers",
        type=click.IntRange(1, 1024),
        default=1,
        show_default=True,
        help="Processes that decode; one local worker is this process.",
    )
    return where(number(function))


def filling(
    prepared: PreparedRun, executor_name: str, workers: int, threads: int, allowed: Allowances, **excluded: object
) -> Fill | None:
    """What stores the requests that workers decode; None if this process decodes all.

    `excluded` are other options by name that exclude workers where they are given.

    Raises:
        UserError: the run cannot be spread.
    """
    if executor_name == LOCAL and workers == 1:
        return None
    for name, given in excluded.items():
        if given is not None:
            raise UserError(
                f"--{name} needs all requests in one process; leave out --executor and --workers, or --{name}"
            )
    # imported with their options: the arms need numpy
    from audit.executors.job import job_of
    from audit.executors.shares import require_joinable
    from audit.executors.spread import Spread

    require_joinable(prepared)
    return Spread(prepared, job_of(prepared, threads, allowed), executor(executor_name), workers).fill
