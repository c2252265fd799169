"""`audit sweep`: finds the fastest draft length on this machine. Stores nothing and checks nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from audit.errors import CannotDecide, UserError
from audit.suite.loader import load_suite
from audit.terminal.options import PATH, allow_options, allowed, complete_arms, complete_suites, wide_option
from audit.terminal.tables import cell, echo_rows
from audit.text.printer import echo, note
from audit.text.staged_files import require_writable, write_staged
from audit.text.unsafe import quoted

if TYPE_CHECKING:
    from audit.sweep.sweep import Sweep

MOST: Final = 64
"""Longest draft length, so that a typo does not run for a day."""
PART: Final = re.compile(r"([0-9]{1,4})(?:\.\.([0-9]{1,4}))?")


@click.command("sweep")
@click.argument("suite", shell_complete=complete_suites)
@click.option("--gamma", metavar="RANGE", required=True, help="Draft lengths: 1..8, or 1,2,4.")
@click.option(
    "--arm",
    "arms",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_arms,
    help="An arm to measure; repeat for more. Default: all.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=6, show_default=True, help="Interleaved rounds.")
@click.option("--max-prompts", type=click.IntRange(min=1), help="Maximum number of cases, spread over the suite.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of torch.")
@click.option("--json", "out", metavar="FILE", type=PATH, help="Also write the figures as JSON.")
@allow_options
@wide_option
@click.pass_context
def command(
    ctx: click.Context,
    suite: str,
    gamma: str,
    arms: tuple[str, ...],
    rounds: int,
    max_prompts: int | None,
    threads: int,
    out: Path | None,
) -> None:
    """Find the fastest draft length of each arm of SUITE.

    Times plain decoding and the arm at every length, interleaved, on the suite's prompts.
    The recommended length has the most tokens per second; a second measurement then
    compares it with plain decoding. The command only measures:
    no check runs, and nothing is stored. Exit code 0 for every recommendation;
    2: invalid input; 3: interrupted.
    """
    gammas = parse_gammas(gamma)
    loaded = load_suite(suite)
    if out is not None:
        require_writable(out)
    from audit.evidence.environment import use_threads
    from audit.sweep import report
    from audit.sweep.sweep import SweepOptions, sweep

    use_threads(threads)
    try:
        result = sweep(loaded, SweepOptions(gammas, arms, rounds, max_prompts, allowed(ctx)), note)
    except KeyboardInterrupt as error:
        raise CannotDecide("interrupted; a partial sweep gives no recommendation, run it again") from error
    _print(result)
    if out is not None:
        text = json.dumps(report.document(result), indent=2, allow_nan=False) + "\n"
        write_staged({out: text.encode()})


def _print(sweep: Sweep) -> None:
    from audit.sweep import report

    for arm in sweep.arms:
        echo(cell(report.heading(arm)))
        echo_rows(report.COLUMNS, report.table(arm))
        echo(report.recommendation(arm.choice), "")
    echo(*report.footing(sweep))


def parse_gammas(text: str) -> tuple[int, ...]:
    """Return the draft lengths, ascending and unique.

    Raises:
        UserError: the syntax is invalid, a range runs backwards, or a length is outside 1 to 64.
    """
    return tuple(sorted({gamma for part in text.split(",") for gamma in _part(text, part.strip())}))


def _part(text: str, part: str) -> range:
    matched = PART.fullmatch(part)
    if matched is None:
        raise _mistake(text, f"{quoted(part)} is no draft length; write 1..8 or 1,2,4")
    low = int(matched[1])
    high = int(matched[2] or low)
    if low > high:
        raise _mistake(text, f"{part} runs backwards; write {high}..{low}")
    if low < 1 or high > MOST:
        raise _mistake(text, f"{part} leaves 1 to {MOST}; choose lengths between them")
    return range(low, high + 1)


def _mistake(text: str, problem: str) -> UserError:
    return UserError(f"--gamma {quoted(text)}: {problem}")
