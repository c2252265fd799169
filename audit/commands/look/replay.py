"""`audit replay`: a stored run decoded again from its record, on this machine."""

import click

from audit.store import Store
from audit.terminal.options import complete_runs, json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.printer import echo, note

ARMS = ("arm", "requests", "same tokens", "recorded digests", "same digests")
CHANGES = ("environment", "then", "now")


@click.command("replay")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of torch.")
@json_option
@wide_option
@store_option
@click.pass_context
def command(ctx: click.Context, run: str, threads: int, as_json: bool, store: str) -> None:
    """Decode RUN again from its record, and say which tokens and which bits of the target's rows come again.

    Every decoding arm of our own engines runs with the recorded prompts, parameters, order and batches; nothing is
    stored. What differs between the run's environment and this one is listed, whether it matters or not.

    Exit code 0: every token and every recorded digest came again; 1: some did not.
    """
    # imported late: parsing a command line needs neither torch nor models
    from audit.evidence.environment import environment, use_threads
    from audit.report.comparisons.run_diff import environment_changes
    from audit.runs.replay import replay_run

    use_threads(threads)
    with Store.open(store, create=False, read_only=True) as opened:
        record = opened.load_run(opened.resolve(run))
        replay = replay_run(opened, record, lambda arm: note(f"running {cell(arm)}"))
    changes = environment_changes(record.environment, environment())
    if as_json:
        echo_json({"run": record.ulid, "arms": replay.arms, "left_out": replay.left_out, "environment": changes})
        ctx.exit(0 if replay.same else 1)
    rows = [(arm.arm, arm.requests, arm.same, arm.digests, arm.same_digests) for arm in replay.arms]
    echo_rows(ARMS, rows)
    for other in replay.arms:
        if other.first is not None:
            echo(f"  {cell(other.first)}")
    if replay.left_out:
        echo(f"left out, because they decode nothing of their own: {cell(', '.join(replay.left_out))}")
    if changes:
        echo("")
        echo_rows(CHANGES, [(change.place, change.a, change.b) for change in changes])
    words = "the same tokens and the same bits" if replay.same else "not the same"
    echo(f"{words}; run {record.ulid}")
    ctx.exit(0 if replay.same else 1)
