"""`audit parity`: instances of one engine compared, as stored runs or as fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.errors import CannotDecide, UserError
from audit.store import Store
from audit.terminal.options import allow_options, complete_runs, given_options, json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.printer import echo, note

if TYPE_CHECKING:
    from audit.report.comparisons.parity import Parity

RUNS = ("instance", "run", "its own exit code", "settings that differ from instance 1")
RESULTS = ("arm", "compared", "verdict", "n", "effect", "bound", "limit", "what was found")
CONCLUSIONS = {
    0: "PASS: the instances do the same",
    1: "FAIL: an instance differs or stops speculating",
    3: "UNDECIDED: at least one comparison has too little evidence; that is not a pass",
}
USAGE = 2
MOST_SETTINGS = 3
SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command("parity")
@click.argument("runs", nargs=-1, required=True, shell_complete=complete_runs, metavar="RUN...")
@click.option("--instances", type=click.IntRange(2, 100), help="Start this many fresh processes of the suite RUN.")
@click.option("--alpha", type=SHARE, default=0.01, show_default=True, help="Error rate of each test, over all pairs.")
@click.option("--margin", type=SHARE, default=0.05, show_default=True, help="Change of acceptance that is the same.")
@click.option("--drift", type=SHARE, default=0.2, show_default=True, help="Change between the halves of a run.")
@click.option("--noise", type=click.FloatRange(min=0), help="Change of a log-probability that is noise, in nats.")
@click.option("--last", type=SHARE, default=0.1, show_default=True, help="Share of the requests that is the end.")
@allow_options
@json_option
@wide_option
@store_option
@click.pass_context
def command(
    ctx: click.Context, /, runs: tuple[str, ...], instances: int | None, as_json: bool, store: str, **limits: Any
) -> None:
    """Compare instances of one engine: two or more stored RUNs, or N fresh processes of a suite.

    Compared are, for every candidate arm that all have: acceptance between every two instances, tokens and
    log-probabilities of the same requests, the trend of acceptance over the requests of each, and whether each still
    speculates at its end. The noise of log-probabilities is that of the first run's controls, unless --noise states it.

    With --instances N, RUN is a suite: it runs N times, each time in a process of its own and as a run of its own.

    Exit code 0: the instances do the same. 1: one differs or stops speculating. 2: nothing could be compared. 3: a
    comparison is undecided.
    """
    if instances is not None:
        if len(runs) != 1:
            raise UserError("--instances N starts one suite; name one suite, or leave --instances out to compare runs")
        runs = tuple(_fresh(ctx, runs[0], instances, store))
    # imported late: reading records needs numpy
    from audit.report.comparisons.parity import ParityLimits, run_parity

    with Store.open(store, create=False, read_only=True) as opened:
        parity = run_parity(opened, [opened.resolve(run) for run in runs], ParityLimits(**limits))
    if as_json:
        echo_json(parity)
    else:
        _print(parity)
    ctx.exit(parity.exit_code)


def _fresh(ctx: click.Context, suite: str, instances: int, store: str) -> list[str]:
    """Run the suite in processes of their own, one after another; the ids of their runs."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / f"{number}.json" for number in range(instances)]
        for number, place in enumerate(places, 1):
            note(f"instance {number} of {instances}: audit run {suite}")
            _start(["run", suite, "--results", str(place), "--store", store, *given_options(ctx)], place)
        return [str(json.loads(place.read_text("utf-8"))["run"]["ulid"]) for place in places]


def _start(arguments: Sequence[str], place: Path) -> None:
    """Run one instance; raises UserError: the suite cannot run; CannotDecide: the process ended without results."""
    done = subprocess.run([sys.executable, "-m", "audit", *arguments], capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("audit: ")
    if done.returncode == USAGE:
        raise UserError(f"an instance could not run: {last}")
    if not place.exists():
        raise CannotDecide(f"an instance ended with exit code {done.returncode} and no results: {last}")


def _print(parity: Parity) -> None:
    rows = [
        (number, run.run, run.exit_code, ", ".join(setting.place for setting in run.settings[:MOST_SETTINGS]) or "none")
        for number, run in enumerate(parity.runs, 1)
    ]
    echo_rows(RUNS, rows)
    for number, run in enumerate(parity.runs, 1):
        if len(run.settings) > MOST_SETTINGS:
            first = parity.runs[0].run
            echo(f"  instance {number}: {len(run.settings)} settings differ; audit diff {first} {run.run} lists them")
    echo("")
    results = [
        (one.arm, one.compared, one.verdict.value, one.n, one.effect, one.bound, one.limit, one.summary)
        for one in parity.results
    ]
    echo_rows(RESULTS, results)
    limits = parity.limits
    echo("", f"Each test errs with probability {limits.alpha:g} at most over all arms, instances and pairs.")
    echo(cell(CONCLUSIONS[parity.exit_code]))
