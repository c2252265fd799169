"""`audit run`: run a suite, store the evidence, judge it."""

from __future__ import annotations

from pathlib import Path

import click

from audit.commands.options import store_option
from audit.commands.running import finish
from audit.store import Store
from audit.suite_loader import load_suite


@click.command("run")
@click.argument("suite")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of torch.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="Where to write results.json.")
@store_option
@click.pass_context
def command(ctx: click.Context, suite: str, threads: int, results: Path | None, store: str) -> None:
    """Run SUITE, a YAML file or the name of a packaged suite.

    Exit code 0: everything that applies is certified. 1: a claim is broken.
    2: the suite cannot be run. 3: the evidence decides nothing somewhere.
    """
    loaded = load_suite(suite)
    import torch

    from audit.prepare import prepare
    from audit.runner import run

    # tiny models are slower on two threads than on one
    torch.set_num_threads(threads)
    prepared = prepare(loaded)
    with Store.open(store, create=True) as opened:
        ctx.exit(finish(opened, lambda shown: run(prepared, opened, shown), results))
