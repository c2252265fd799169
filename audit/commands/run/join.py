"""`audit join`: the shards of a run as one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.report.tables.results import require_place
from audit.store import Store
from audit.terminal.options import complete_runs, form_options, store_option, wide_option
from audit.terminal.run_session import RunEnding, finish

if TYPE_CHECKING:
    from audit.executors.join import StoredShard


@click.command("join")
@click.argument("shards", metavar="SHARD...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--accept-changes", is_flag=True, help="Join shards of several environments, and record what differs.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="Where to write results.json.")
@form_options
@wide_option
@store_option
@click.pass_context
def command(
    ctx: click.Context,
    shards: tuple[str, ...],
    accept_changes: bool,
    results: Path | None,
    form: str | None,
    store: str,
) -> None:
    """Join the SHARDs of a run to one run, and judge it.

    A SHARD is a bundle, FILE.zip, or a run of the store, each made by audit run SUITE --shard I/N. Their hashes are
    recomputed first, and nothing is stored unless they fit: one suite, the same models and settings, one environment,
    and every request once. The joined run is judged as a run of one process is, and has its content root.

    Neither models nor the suite's file are needed. Exit codes are those of audit run.
    """
    # imported late: the checks need numpy and scipy
    from audit.executors.join import join

    if results is not None:
        require_place(results)
    with ExitStack() as stack:
        bundles = {shard for shard in shards if Path(shard).suffix == ".zip"}
        opened = stack.enter_context(Store.open(store, create=bundles == set(shards)))
        result = _shards(shards, opened, stack)
        ending = RunEnding(results, form)
        ctx.exit(finish(opened, lambda shown: join(result, opened, shown, accept_changes=accept_changes), ending))


def _shards(names: Sequence[str], store: Store, stack: ExitStack) -> list[StoredShard]:
    """The shards in the order of their names; bundles stay open until the stack ends."""
    from audit.executors.join import stored_shard
    from audit.store.verified_bundle import opened

    result = []
    for name in names:
        if Path(name).suffix == ".zip":
            bundle = stack.enter_context(opened(Path(name)))
            result.append(stored_shard(name, bundle.store, bundle.run, bundle.broken))
        else:
            run = store.resolve(name)
            result.append(stored_shard(f"run {run}", store, run, store.broken_places(run)))
    return result
