"""Shared by `run` and `resume`: progress on stderr, verdicts on stdout, the results file."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Final

from audit.evidence.environment import actor
from audit.evidence.verdicts import Verdict
from audit.report.requests.pieces import pieces_of
from audit.report.tables import verdicts
from audit.report.tables.coverage import coverage_lines
from audit.report.tables.known_defects import defect_lines
from audit.report.tables.looks import look_lines, next_step
from audit.report.tables.results import Results, results, write_results
from audit.runs.interruptions import Interrupted
from audit.runs.runner import Progress, RunOutcome
from audit.runs.shard import Shard, shard_of
from audit.store import Store
from audit.store.base.connection import data_folder
from audit.terminal.tables import cell, echo_rows
from audit.text.printer import Painted, echo, echo_document, echo_painted, live, note

if TYPE_CHECKING:
    from audit.gate.policy import Policy

CANNOT_DECIDE = 3
OUTCOME_COLOURS: Final = MappingProxyType({"PASS": "green", "FAIL": "red", "UNDECIDED": "yellow"})


class LineProgress:
    """Prints one line per arm if stderr is no terminal."""

    def planned(self, totals: Mapping[str, int]) -> None:
        """Do nothing: every arm has a line of its own."""

    def arm(self, name: str, total: int, done: int) -> None:
        """Print the start of this part."""
        again = f", {done} already done" if done else ""
        note(f"running {name}: {total} requests{again}")

    def advance(self, tokens: int) -> None:
        """Do nothing: a log needs no bar."""

    def judging(self, arm: str) -> None:
        """Print the start of this part."""
        note(f"checking {arm}")

    def judged(self, arm: str, check: str, verdict: Verdict) -> None:
        """Do nothing: the verdicts follow on stdout."""


@contextmanager
def progress() -> Iterator[Progress]:
    """A table on a terminal, lines elsewhere; both on stderr."""
    if not live(sys.stderr):
        yield LineProgress()
        return
    # imported late: rich is for terminals only
    from audit.terminal.live_table import live_table

    with live_table() as table:
        yield table


def announce(line: str) -> None:
    """Print what takes a while before the first arm begins."""
    note(line)


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: finished requests stay stored and the run can be resumed."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def finish(
    store: Store, go: Callable[[Progress], RunOutcome], results_file: Path | None, policy: Policy | None = None
) -> int:
    """Run, print the verdicts and write the results; return the exit code, with a policy that of its decision."""
    try:
        with stopped_by_sigterm(), progress() as shown:
            outcome = go(shown)
    except Interrupted as stopped:
        note(f"audit: {stopped}")
        return CANNOT_DECIDE
    checks = results(store, outcome.run)
    shard = shard_of(checks.run)
    if shard is not None:
        print_shard(checks, shard)
        return 0
    pieces = pieces_of(checks.run).text
    if pieces is not None:
        store.add_pieces(outcome.run, pieces)
    print_results(checks)
    step = next_step(checks.run, checks.checks, store.url)
    if step is not None:
        echo(f"next: {cell(step)}")
    path = results_file or data_folder() / "runs" / outcome.run / "results.json"
    write_results(checks, path)
    note(f"store {store.url}", f"results {path}")
    return outcome.exit_code if policy is None else _decided(store, outcome.run, policy)


def _decided(store: Store, run: str, policy: Policy) -> int:
    """Decide as `audit gate` does; the subjects are what the run audited."""
    # imported late, as in `audit gate`
    from audit.gate.formats import text
    from audit.gate.judge import judge
    from audit.gate.judgement import GateRequest

    judgement = judge(store, run, GateRequest(policy, (), actor(), datetime.now(UTC), no_subject=True))
    echo_document(text(judgement))
    return judgement.exit_code


def print_shard(result: Results, shard: Shard) -> None:
    """Print the arms of a shard, its id, and what follows."""
    echo_rows(verdicts.ARMS, verdicts.marked(verdicts.arm_rows(result.run.arms), verdicts.faults_of(result.run.arms)))
    total = sum(arm.counts.requests for arm in result.run.arms)
    echo(
        "",
        f"shard {shard.name}: {total} of {sum(shard.totals.values())} requests, not judged",
        f"run {result.run.ulid}",
    )
    echo(f"next: audit export {result.run.ulid} --out shard-{shard.index}.zip, then join all {shard.of}: audit join")


def print_results(result: Results) -> None:
    """Print the tables of a run, its conclusion and its id."""
    faults = verdicts.faults_of(result.run.arms)
    echo_rows(verdicts.ARMS, verdicts.marked(verdicts.arm_rows(result.run.arms), faults))
    echo("")
    echo_rows(verdicts.VERDICTS, verdicts.marked(verdicts.verdict_rows(result.checks), faults))
    lines = [*verdicts.finding_lines(result.checks), *defect_lines(result.run.arms, result.checks)]
    lines += [
        *verdicts.lossy_lines(result.run.arms),
        *verdicts.account_lines(result.run.arms),
        *verdicts.waived_lines(result.checks),
    ]
    lines += coverage_lines(result.run.arms, result.coverage)
    if lines:
        echo("", *lines)
    word, colon, rest = verdicts.conclusion(result.run.exit_code).partition(":")
    echo("")
    echo_painted([Painted(word, OUTCOME_COLOURS.get(word)), Painted(colon + rest)])
    echo(*look_lines(result.run, result.checks), f"run {result.run.ulid}")
