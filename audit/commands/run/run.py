"""`audit run`: run a suite, store the evidence, judge it."""

from dataclasses import replace
from pathlib import Path

import click

from audit.errors import UserError
from audit.gate.policy import load_policy
from audit.report.tables.results import require_place
from audit.runs.interim_looks import RunStopRule
from audit.runs.shard import Shard
from audit.store import RunReason, Store
from audit.suite.loader import load_suite
from audit.terminal.executors import filling, worker_options
from audit.terminal.options import allow_options, allowed, complete_suites, form_options, store_option, wide_option
from audit.terminal.run_session import RunEnding, finish
from audit.terminal.telemetry import telemetry_option, telling
from audit.text.printer import note


@click.command("run")
@click.argument("suite", shell_complete=complete_suites)
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of torch.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="Where to write results.json.")
@click.option("--until", type=click.Choice(["decided"]), help="Run in rounds until every check is decided.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Token limit of --until over all arms.")
@click.option("--baseline", metavar="RUN", help="A finished run of the same store whose plain arms are reused.")
@click.option("--policy", metavar="FILE", help="Policy of audit gate whose decision is the exit code.")
@click.option("--text", type=click.Choice(["off"]), help="Keep prompts, outputs and findings out of the store.")
@click.option("--shard", metavar="I/N", help="Run one of N parts of the requests; audit join puts them together.")
@worker_options
@click.option("--purpose", metavar="TEXT", help="Why the run is made, for the record.")
@click.option("--ticket", metavar="ID", help="The ticket that asks for the run, for the record.")
@telemetry_option
@allow_options
@form_options
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
    policy: str | None,
    text: str | None,
    shard: str | None,
    purpose: str | None,
    ticket: str | None,
    telemetry: str | None,
    form: str | None,
    store: str,
) -> None:
    """Run SUITE, a YAML file or the name of a packaged suite.

    With --until decided, the suite's cases run in rounds with fresh random streams. Each round ends with an interim
    look, and the checks' error probabilities are divided over the looks. The run ends when all checks are certified,
    one finds a fault, or another round could exceed --max-tokens.

    With --baseline, the run reuses the baselines and controls of an earlier run of the same requests and decodes
    nothing without speculation. Use it for a single endpoint that was restarted with speculation after the earlier run.

    With --text off, or the suite's key text, the store gets commitments to prompts, outputs and findings, and never
    their content. Such a run cannot be resumed, judged again or replayed.

    With --shard I/N, the run has the I-th of N parts of the requests and is not judged: run each part in a process or
    on a machine of its own, and join the runs with audit join. The exit code is then 0 once the part is stored.

    With --workers N, N processes decode the requests that do not depend on one another, and this one stores and judges
    them. A part whose worker died goes to another one. The content is that of a run of one process. With --executor
    slurm the workers are jobs of SLURM, with the options of sbatch that --slurm gives: --slurm partition=short.

    A suite may read the variables, send requests to the hosts and start the programs that the --allow options or the
    user's configuration name; audit validate lists what it would touch.

    Exit code 0: everything that applies is certified. 1: a claim is broken. 2: the suite cannot run. 3: a check or an
    arm is undecided. With --policy they are those of audit gate --no-subject on the run.
    """
    rule = _rule(until, max_tokens, baseline)
    decides = None if policy is None else load_policy(policy)
    part = None if shard is None else _shard(shard, until, baseline, policy)
    if results is not None:
        require_place(results)
    granted = allowed(ctx)
    loaded = load_suite(suite) if text is None else replace(load_suite(suite), withheld=True)
    from audit.evidence.environment import use_threads
    from audit.runs.prepare import prepare, require_engines
    from audit.runs.reused_baseline import reused_run
    from audit.runs.rounds import require_first_round
    from audit.runs.runner import run

    use_threads(threads)
    earlier = None
    if baseline is not None:
        with Store.open(store, create=False, read_only=True) as before:
            earlier = reused_run(before, baseline)
    prepared = prepare(loaded, earlier, granted)
    if rule is not None:
        # before a store is created
        require_first_round(prepared, rule)
    require_engines(prepared, note)
    if part is not None:
        from audit.executors.shares import share_of

        prepared = share_of(prepared, part)
    fill = filling(ctx, prepared, threads, granted, until=until, baseline=baseline)
    reason = RunReason(purpose, ticket)
    ending = RunEnding(results, form, decides)
    answering = (loaded.backend, loaded.models["target"].source)
    with Store.open(store, create=True) as opened, telling(opened, telemetry, *answering):
        ctx.exit(finish(opened, lambda shown: run(prepared, opened, shown, rule, reason, fill), ending))


def _shard(text: str, until: str | None, baseline: str | None, policy: str | None) -> Shard:
    # imported with its option: the arms need numpy
    from audit.executors.shares import parse_shard

    for name, given, reason in (
        ("--until", until, "each round depends on what all requests emitted before it"),
        ("--baseline", baseline, "the earlier run is in one store"),
        ("--policy", policy, "the joined run is what a policy decides on"),
    ):
        if given is not None:
            raise UserError(f"--shard and {name} exclude each other: {reason}; leave one of them out")
    return parse_shard(text)


def _rule(until: str | None, max_tokens: int | None, baseline: str | None) -> RunStopRule | None:
    if (until is None) != (max_tokens is None):
        raise UserError("--until decided and --max-tokens N go together; give both or neither")
    if until is not None and baseline is not None:
        raise UserError("--until needs fresh requests in every round, which --baseline cannot give; use one of them")
    return None if max_tokens is None else RunStopRule(max_tokens)
