"""Shared by `run` and `resume`: progress on stderr, verdicts on stdout, the results file."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Final

from audit.errors import CannotDecide, UserError
from audit.evidence.environment import actor
from audit.report.requests.pieces import Pieces, pieces_of
from audit.report.tables import overview, verdicts
from audit.report.tables.coverage import coverage_lines
from audit.report.tables.known_defects import defect_lines
from audit.report.tables.looks import UNDECIDED, look_lines, next_steps
from audit.report.tables.results import Results, results, write_results
from audit.report.tables.verdicts import mechanism_lines
from audit.runs.interim_looks import interim_look_lines
from audit.runs.interruptions import Interrupted
from audit.runs.runner import Progress, Quiet, RunOutcome
from audit.runs.shard import Shard, shard_of
from audit.store import Store
from audit.store.base.connection import data_folder
from audit.store.base.values import requests_named
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.printer import Painted, echo, echo_painted, live, note
from engine.core.errors import EngineError

if TYPE_CHECKING:
    from audit.gate.policy import Policy

OUTCOME_COLOURS: Final = MappingProxyType({"PASS": "green", "FAIL": "red", "UNDECIDED": "yellow"})


class LineProgress(Quiet):
    """Prints one line per arm if stderr is no terminal: a log needs no bar, and the verdicts follow on stdout."""

    def arm(self, name: str, total: int, done: int) -> None:
        """Print the start of this part."""
        again = f", {done} already done" if done else ""
        note(f"running {name}: {total} requests{again}")

    def judging(self, arm: str) -> None:
        """Print the start of this part."""
        note(f"checking {arm}")


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


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The end of a run: where its results go, in which form they are printed, and the policy that decides."""

    results: Path | None = None
    form: str | None = None
    """`table` for every verdict, `json` for the results, None for a summary."""
    policy: Policy | None = None


def finish(store: Store, go: Callable[[Progress], RunOutcome], ending: RunEnding = RunEnding()) -> int:
    """Run, print the verdicts and write the results; return the exit code, with a policy that of its decision."""
    try:
        with stopped_by_sigterm(), progress() as shown:
            outcome = go(shown)
    except Interrupted as stopped:
        note(f"audit: {stopped}")
        return UNDECIDED
    result = results(store, outcome.run)
    shard = shard_of(result.run)
    if ending.form == "json":
        echo_json(result)
    if shard is not None:
        if ending.form != "json":
            print_shard(result, shard)
        return 0
    pieces = pieces_of(result.run)
    if pieces.text is not None:
        store.add_pieces(outcome.run, pieces.text)
    path = ending.results or data_folder() / "runs" / outcome.run / "results.json"
    write_results(result, path)
    if ending.form != "json":
        (print_summary if ending.form is None else print_tables)(store, result, pieces)
    note(f"store {store.url}", f"results {path}")
    if ending.policy is None:
        return outcome.exit_code
    return _decided(store, outcome.run, ending.policy, echo if ending.form != "json" else note)


def _decided(store: Store, run: str, policy: Policy, say: Callable[..., None]) -> int:
    """Decide as `audit gate` does; the subjects are what the run audited."""
    # imported late, as in `audit gate`
    from audit.gate.formats import text
    from audit.gate.judge import judge
    from audit.gate.judgement import GateRequest

    judgement = judge(store, run, GateRequest(policy, (), actor(), datetime.now(UTC), no_subject=True))
    say(*text(judgement).splitlines())
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
    echo(
        f"next: audit export {result.run.ulid} --out shard-{shard.index}.zip, "
        f"then join all {shard.of}: audit join shard-*.zip"
    )


def print_tables(store: Store, result: Results, _pieces: Pieces) -> None:
    """Print every arm and every verdict of a run, its conclusion, its id and what follows."""
    faults = verdicts.faults_of(result.run.arms)
    echo_rows(verdicts.ARMS, verdicts.marked(verdicts.arm_rows(result.run.arms), faults))
    echo("")
    echo_rows(verdicts.VERDICTS, verdicts.marked(verdicts.verdict_rows(result.checks), faults))
    lines = [*verdicts.finding_lines(result.checks), *_stated(result)]
    lines += coverage_lines(result.run.arms, result.coverage)
    if lines:
        echo("", *lines)
    _conclude(result)
    echo(*look_lines(result.run, result.checks), f"run {result.run.ulid}")
    _follow(store, result)


def print_summary(store: Store, result: Results, pieces: Pieces) -> None:
    """Print a run in a screen: its arms with their claims, its faults or what it lacks, and what follows."""
    echo_rows(overview.ARMS, overview.arm_rows(result))
    lines = [*overview.fault_lines(result.checks), *_place(store, result, pieces), *_stated(result)]
    lines += overview.arm_lines(result.run.candidates)
    if lines:
        echo("", *lines)
    _conclude(result)
    echo(*(overview.missing_lines(result) if result.run.exit_code == UNDECIDED else []))
    echo(*interim_look_lines(result.run.events), f"run {result.run.ulid}")
    _follow(store, result)


def _stated(result: Results) -> list[str]:
    """Words on the verdicts, in every form: mechanisms, known defects, lossy rules, other accounts, waivers."""
    arms, checks = result.run.arms, result.checks
    lines = [*mechanism_lines(checks), *defect_lines(arms, checks), *verdicts.lossy_lines(arms)]
    return [*lines, *verdicts.account_lines(arms), *verdicts.waived_lines(checks)]


def _place(store: Store, result: Results, pieces: Pieces) -> list[str]:
    """The place of the first fault in its answer; none where the store does not hold it."""
    finding = overview.first_finding(result.checks)
    if finding is None:
        return []
    try:
        key = requests_named(result.run.ulid, sorted(store.finished(result.run.ulid)), finding.request)[0]
        record = store.load_arm(result.run.ulid, key.arm, [key]).requests[0]
        place = overview.wrong_place(finding, record.trace, pieces)
    except (UserError, CannotDecide, EngineError, IndexError):
        return []
    return [] if place is None else [place]


def _conclude(result: Results) -> None:
    word, colon, rest = overview.conclusion_of(result).partition(":")
    echo("")
    echo_painted([Painted(word, OUTCOME_COLOURS.get(word)), Painted(colon + rest)])


def _follow(store: Store, result: Results) -> None:
    echo(*(f"next: {cell(step)}" for step in next_steps(result.run, result.checks, store.url)))
