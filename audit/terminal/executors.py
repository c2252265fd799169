"""The options that spread the requests of a run over workers, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from audit.errors import UserError
from engine.core.registry import load

if TYPE_CHECKING:
    from audit.executors.job import Executor
    from audit.executors.slurm_jobs import SlurmOptions
    from audit.runs.prepare import PreparedRun
    from audit.runs.runner import Fill
    from audit.suite.allowances import Allowances

CHOSEN: Final = "specaudit_workers"
F = TypeVar("F", bound=Callable[..., Any])
LOCAL: Final = "local"
SLURM: Final = "slurm"
EXECUTORS: Final[Mapping[str, str]] = {
    LOCAL: "audit.executors.local:LocalExecutor",
    "ray": "audit.executors.on_ray:RayExecutor",
    SLURM: "audit.executors.on_slurm:SlurmExecutor",
}


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """Where workers run, how many, and the options of SLURM's jobs (None without `--slurm`)."""

    executor_name: str = LOCAL
    workers: int = 1
    slurm: SlurmOptions | None = None


def worker_options(function: F) -> F:
    """`--executor NAME`, `--workers N` and `--slurm KEY=VALUE`; `filling` reads them."""
    where = click.option(
        "--executor",
        "executor_name",
        type=click.Choice(list(EXECUTORS)),
        default=LOCAL,
        show_default=True,
        expose_value=False,
        callback=_keep,
        help="Where workers run.",
    )
    number = click.option(
        "--workers",
        type=click.IntRange(1, 1024),
        default=1,
        show_default=True,
        expose_value=False,
        callback=_keep,
        help="Processes that decode; one local worker is this process.",
    )
    slurm = click.option(
        "--slurm",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_keep_slurm,
        help="An option of sbatch for the jobs, or folder=PATH for their files. Repeat for more.",
    )
    return where(number(slurm(function)))


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta[CHOSEN] = replace(context.meta.get(CHOSEN, WorkerChoice()), **{str(parameter.name): value})


def _keep_slurm(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    if values:
        # imported with its option, like everything that a run needs
        from audit.executors.slurm_jobs import slurm_options

        _keep(context, parameter, slurm_options(values))


def filling(
    context: click.Context, prepared: PreparedRun, threads: int, allowed: Allowances, **excluded: object
) -> Fill | None:
    """Stores the requests that workers decode; None if this process decodes all.

    `excluded` are other options by name that exclude workers where they are given.

    Raises:
        UserError: the run cannot be spread.
    """
    chosen: WorkerChoice = context.meta[CHOSEN]
    if chosen.slurm is not None and chosen.executor_name != SLURM:
        raise UserError(f"--slurm is for --executor {SLURM}; add it, or leave out --slurm")
    if chosen.executor_name == LOCAL and chosen.workers == 1:
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
    made = executor(chosen.executor_name, *([chosen.slurm] if chosen.slurm else []))
    return Spread(prepared, job_of(prepared, threads, allowed), made, chosen.workers).fill


def executor(name: str, *options: object) -> Executor:
    """A new executor of that name, with what its constructor takes.

    Raises:
        UserError: its packages are not installed, or it cannot work on this machine.
    """
    made: Executor = load(EXECUTORS[name])(*options)
    return made
