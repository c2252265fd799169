"""`audit selftest`: checks that the battery catches every catalogued fault and passes clean arms. Stores nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.errors import UserError
from audit.terminal.options import wide_option
from audit.terminal.tables import echo_rows
from audit.text.printer import echo, note
from audit.text.staged_files import require_writable, staged

if TYPE_CHECKING:
    from audit.selftest.engines import EngineControls
    from audit.selftest.work import SelfTestPlan, SelfTestResult


@click.command("selftest")
@click.option("--quick", is_flag=True, help="Gross faults, 3 seeds, small arms, 60 clean arms: two minutes.")
@click.option("--default-suite", is_flag=True, help="Each fault with a suite's default checks and settings only.")
@click.option("--fault", "chosen", metavar="NAME", multiple=True, help="A fault; repeat for more. Default: all.")
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds per fault and size. Default: 20.")
@click.option("--most", type=click.IntRange(min=256), help="Size of the largest arm in tokens. Default: 200000.")
@click.option("--most-outside", type=click.IntRange(min=256), help="Largest arm without the record. Default: 4096.")
@click.option("--clean", type=click.IntRange(min=0), help="Number of clean arms. Default: 1000.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--json", "out", metavar="FILE", type=click.Path(path_type=Path), help="Also write all counts as JSON.")
@click.option("--markdown", "page", metavar="FILE", type=click.Path(path_type=Path), help="Also write the tables.")
@wide_option
def command(
    quick: bool,
    default_suite: bool,
    chosen: tuple[str, ...],
    seeds: int | None,
    most: int | None,
    most_outside: int | None,
    clean: int | None,
    jobs: int,
    out: Path | None,
    page: Path | None,
) -> None:
    """Run deliberately broken arms and clean arms, and judge both.

    Some check must catch every fault of the catalogue in nine of ten seeds, and
    clean arms must raise no more alarms than the checks allow. All checks run with
    their default parameters, over scripted models. The same command prints the same
    bytes.

    With --default-suite each fault runs in a suite that names its proposer, rule,
    parameters and models and leaves all else at the defaults; the default checks
    must catch it. No clean arms run.

    Without --fault, engines of other projects that this Python has run models of an
    exactly known law, sound ones and ones with a planted leak.

    Exit code 0: all faults caught, no excess of alarms; 1: the last lines give the failures;
    2: invalid input.
    """
    for path in (out, page):
        if path is not None:
            require_writable(path)
    from audit.selftest import engines, work
    from audit.selftest.work import FULL, QUICK, PresetOverrides, planned

    plan = planned(QUICK if quick else FULL, chosen, PresetOverrides(seeds, most, most_outside, clean), jobs)
    if default_suite:
        _by_default(plan, out, page)
        return
    outcome = work.run(plan, note)
    controls = None if chosen else engines.run_controls(engines.QUICK if quick else engines.FULL, note)
    failed = _print(outcome, controls)
    _write(outcome, controls, out, page)
    if failed:
        raise SystemExit(1)


def _by_default(plan: SelfTestPlan, out: Path | None, page: Path | None) -> None:
    """Run the faults in default suites and print their table.

    Raises:
        UserError: `page` is given.
        SystemExit: a fault is not caught.
    """
    from audit.selftest import default_suite, work

    if page is not None:
        raise UserError("--markdown has no page for --default-suite; use --json")
    detections = work.run_by_default(plan, note)
    echo_rows(default_suite.COLUMNS, default_suite.rows(detections))
    if out is not None:
        with staged({out: (json.dumps(default_suite.document(detections), indent=2) + "\n").encode()}):
            pass
    failed = default_suite.failures(detections)
    echo(*([f"FAILED: {line}" for line in failed] or ["passed"]))
    if failed:
        raise SystemExit(1)


def _print(outcome: SelfTestResult, controls: EngineControls | None) -> bool:
    from audit.selftest import engines, report

    echo_rows(report.COLUMNS, report.detection_rows(outcome))
    if outcome.alarms.results:
        echo("")
        echo_rows(report.FAMILY_COLUMNS, report.family_rows(outcome.alarms))
        echo("")
        echo_rows(report.UNIFORM_COLUMNS, report.uniform_rows(outcome.alarms))
        echo("", report.rate_line(outcome.alarms))
    if controls is not None:
        echo("", *controls.skipped)
        if controls.results:
            echo_rows(engines.COLUMNS, [result.row() for result in controls.results])
    failed = [*report.failures(outcome), *(controls.failures() if controls else ())]
    echo(*([f"FAILED: {line}" for line in failed] or ["passed"]))
    return bool(failed)


def _write(outcome: SelfTestResult, controls: EngineControls | None, out: Path | None, page: Path | None) -> None:
    from audit.selftest import report

    files = {}
    if out is not None:
        document = report.document(outcome) | ({"engines": controls.document()} if controls else {})
        files[out] = (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
    if page is not None:
        files[page] = report.page(outcome).encode()
    with staged(files):
        pass
