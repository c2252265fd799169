"""`audit resume`: continue an interrupted run."""

from functools import partial
from pathlib import Path

import click

from audit.errors import UserError
from audit.report.tables.results import require_place
from audit.store import Store, StoredRun
from audit.suite.loader import load_suite
from audit.terminal.executors import filling, worker_options
from audit.terminal.options import allow_options, allowed, complete_runs, form_options, store_option, wide_option
from audit.terminal.run_session import RunEnding, finish
from audit.text.printer import note


@click.command("resume")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of torch.")
@click.option("--accept-changes", is_flag=True, help="Resume in another environment, and record what differs.")
@worker_options
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="Where to write results.json.")
@allow_options
@form_options
@wide_option
@store_option
@click.pass_context
def command(
    ctx: click.Context, run: str, threads: int, accept_changes: bool, results: Path | None, form: str | None, store: str
) -> None:
    """Resume the interrupted RUN (an unambiguous prefix of its id, or `latest`).

    The environment must be the one in which the run began: packages, hardware, threads of torch, code. With
    --accept-changes the run goes on elsewhere, and an event of the run lists what differs.
    """
    from audit.evidence.environment import use_threads
    from audit.executors.shares import share_of
    from audit.runs.interim_looks import stop_rule
    from audit.runs.prepare import prepare, require_engines
    from audit.runs.reused_baseline import begun_with
    from audit.runs.runner import require_unfinished, resume
    from audit.runs.shard import shard_of

    if results is not None:
        require_place(results)
    with Store.open(store, create=False) as opened:
        name = opened.resolve(run)
        record = opened.load_run(name)
        require_unfinished(record)
        loaded = load_suite(suite_path(record))
        use_threads(threads)
        granted, earlier = allowed(ctx), begun_with(opened, record)
        prepared = prepare(loaded, earlier, granted)
        require_engines(prepared, note)
        part = shard_of(record)
        if part is not None:
            prepared = share_of(prepared, part)
        fill = filling(ctx, prepared, threads, granted, until=stop_rule(record), baseline=earlier)
        begun = partial(resume, prepared, opened, name, accept_changes=accept_changes, fill=fill)
        ctx.exit(finish(opened, begun, RunEnding(results, form)))


def suite_path(record: StoredRun) -> str:
    """The path that the run's suite was read from.

    Raises:
        UserError: the run does not record it, or the file no longer exists.
    """
    path = next((used.name for used in record.artifacts if used.role == "suite"), "")
    if not Path(path).is_file():
        raise UserError(f"run {record.ulid}: its suite {path or record.suite_name} no longer exists; restore it")
    return path
