"""`audit minimize`: finds a small suite that reproduces a stored verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.commands.run.resume import suite_path
from audit.errors import CannotDecide, UserError
from audit.store import Store
from audit.suite.access import require_allowed
from audit.suite.loader import load_suite
from audit.terminal.options import PATH, allow_options, allowed, complete_runs, store_option, wide_option
from audit.terminal.run_session import finish, stopped_by_sigterm
from audit.terminal.tables import cell, echo_rows
from audit.text.printer import echo, note

if TYPE_CHECKING:
    from audit.minimize.result import SuiteRuns
    from audit.minimize.search import SearchResult
    from audit.minimize.start import MinimizeStart
    from audit.minimize.trial import TrialLimits
    from audit.suite.allowances import Allowances

COLUMNS = ("what", "run", "reproducer")


@click.command("minimize")
@click.argument("run", shell_complete=complete_runs)
@click.argument("request", required=False)
@click.option(
    "--check",
    metavar="NAME",
    help="Check of the fault. Default: the first that names REQUEST, exact ones before statistics.",
)
@click.option("--trials", type=click.IntRange(min=2), default=200, show_default=True, help="Maximum number of runs.")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=200_000, show_default=True, help="Token limit over all runs."
)
@click.option(
    "--out", type=PATH, default=Path("reproducer"), show_default=True, help="The folder to create; it must not exist."
)
@click.option("--fresh", is_flag=True, help="Start another program's engine anew for every trial.")
@click.option("--keep", is_flag=True, help="Also run the reproducer into the store.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of torch.")
@allow_options
@wide_option
@store_option
@click.pass_context
def command(ctx: click.Context, /, run: str, request: str | None, check: str | None, keep: bool, **given: Any) -> None:
    """Find a small reproducer of a fault of RUN, from one REQUEST.

    REQUEST is ARM/CASE#SAMPLE, as findings name it, or CASE#SAMPLE; without it, the first that the fault names. The
    search drops other requests, then reduces lengths, neighbours, batch, draft length, prompt and sampling parameters
    while the check still finds a fault. Every trial is a real run through the arm's backend. If one request does not
    reproduce the verdict, the search keeps as few as do. Trials share an engine, which is fast; with --fresh none sees
    what another left.

    Exit code 0: the written reproducer gave the verdict twice more. 2: invalid input, or a run without a fault. 3: the
    verdict does not reproduce (nothing is written), or the written reproducer does not give it every time.
    """
    from audit.evidence.environment import use_threads
    from audit.minimize.result import require_free
    from audit.minimize.start import begin
    from audit.minimize.trial import TrialLimits

    out: Path = given["out"]
    require_free(out)
    granted = allowed(ctx)
    with Store.open(given["store"], create=False, read_only=True) as opened:
        record = opened.load_run(opened.resolve(run))
        suite = load_suite(suite_path(record))
        require_allowed(suite, granted)
        start = replace(begin(opened, record, suite, request, check), allowed=granted)
    use_threads(given["threads"])
    note(f"{start.fault.check} of arm {start.fault.arm}, from {start.request}")
    try:
        with stopped_by_sigterm():
            matched, checked = _minimized(start, TrialLimits(given["trials"], given["max_tokens"], given["fresh"]), out)
    except KeyboardInterrupt as error:
        raise CannotDecide("interrupted; nothing is written") from error
    _print(start, matched, checked, out)
    if keep:
        _keep(given["store"], out, granted)
    faults, results = checked.faults, checked.results
    if len(faults) < len(results) and start.suite.backend != "native" and not given["fresh"]:
        note("an engine may keep something from trial to trial: --fresh starts it anew for each")
    ctx.exit(0 if len(faults) == len(results) else 3)


def _minimized(start: MinimizeStart, limits: TrialLimits, out: Path) -> tuple[SearchResult, SuiteRuns]:
    from audit.checks import load
    from audit.minimize.result import write
    from audit.minimize.search import search
    from audit.minimize.trial import Goal, Trials
    from engine.backends import open_backend
    from engine.core.errors import EngineError

    try:
        backend = open_backend(start.suite.backend, start.suite.models)
    except EngineError as error:
        raise UserError(f"{start.suite.path}: {error}") from error
    try:
        matched = search(start, Trials(backend, Goal(load(start.fault.check), start.by_chance), limits, note))
    finally:
        # the written suite opens its own engines: two may not fit in memory together
        getattr(backend, "close", lambda: None)()
    return matched, write(start, matched, out, note)


def _print(start: MinimizeStart, matched: SearchResult, checked: SuiteRuns, out: Path) -> None:
    from audit.minimize.result import CUT_DOWN, minimal, only_just, reproduces, rows

    echo_rows(COLUMNS, [(row.what, row.before or "-", row.after or "-") for row in rows(start, matched)])
    last = checked.results[-1]
    echo("", f"{start.fault.check}: {last.verdict}: {cell(last.summary)}")
    for finding in last.findings[:1]:
        echo(f"{cell(finding.request)} step {finding.step}: {cell(finding.message)}")
    echo("", f"{reproduces(checked.results)}; {matched.trials} trials. {minimal(matched)}")
    if only_just(start, matched):
        echo(CUT_DOWN)
    echo(str(out))


def _keep(url: str, out: Path, granted: Allowances) -> None:
    from audit.minimize.suite_writer import SUITE_FILE
    from audit.runs.prepare import prepare
    from audit.runs.runner import run

    prepared = prepare(load_suite(out / SUITE_FILE), allowed=granted)
    echo("")
    with Store.open(url, create=False) as opened:
        finish(opened, lambda shown: run(prepared, opened, shown))
