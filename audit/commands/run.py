"""`audit run`: run a suite, store the evidence, judge it."""

from __future__ import annotations

from pathlib import Path

import click

from audit.commands.options import store_option, wide_option
from audit.commands.running import finish
from audit.errors import UserError
from audit.runs.interim_looks import RunStopRule
from audit.store import Store
from audit.suite.loader import load_suite


@click.command("run")
@click.argument("suite")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of torch.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="Where to write results.json.")
@click.option("--until", type=click.Choice(["decided"]), help="Run in rounds, and stop as soon as it is decided.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Limit of --until, in all arms together.")
@click.option("--baseline", metavar="RUN", help="A finished run of the same store whose plain arms are taken over.")
@wide_option
@store_option
@click.pass_context
def command(
    ctx: click.Context,
    suite: str,
    threads: int,
    results: Path | None,
    until: str | None,
    max_tokens: int | None,
    baseline: str | None,
    store: str,
) -> None:
    """Run SUITE, a YAML file or the name of a packaged suite.

    With --until decided the suite's cases run again and again with fresh random
    streams; after each round the checks look, with their error probabilities
    divided over the looks, and the run ends when all are certified, one finds a
    fault, or another round could pass --max-tokens.

    With --baseline nothing is decoded without speculation: baselines and controls
    are those of an earlier run of the same requests, for an engine that is there
    only once and was restarted with speculation since.

    Exit code 0: everything that applies is certified. 1: a claim is broken.
    2: the suite cannot be run. 3: the evidence decides nothing somewhere.
    """
    rule = _rule(until, max_tokens)
    if rule is not None and baseline is not None:
        raise UserError(
            "--until asks for fresh requests in every round, an earlier run has none; leave out one of both"
        )
    loaded = load_suite(suite)
    import torch

    from audit.runs.prepare import prepare
    from audit.runs.reused_baseline import reused_run
    from audit.runs.rounds import require_first_round
    from audit.runs.runner import run

    # tiny models are slower on two threads than on one
    torch.set_num_threads(threads)
    earlier = None
    if baseline is not None:
        with Store.open(store, create=False, read_only=True) as before:
            earlier = reused_run(before, baseline)
    prepared = prepare(loaded, earlier)
    if rule is not None:
        # before a store is made
        require_first_round(prepared, rule)
    with Store.open(store, create=True) as opened:
        ctx.exit(finish(opened, lambda shown: run(prepared, opened, shown, rule), results))


def _rule(until: str | None, max_tokens: int | None) -> RunStopRule | None:
    if (until is None) != (max_tokens is None):
        raise UserError("--until decided and --max-tokens N go together; give both or neither")
    return None if max_tokens is None else RunStopRule(max_tokens)
