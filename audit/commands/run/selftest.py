"""`audit selftest`: checks that the battery catches every catalogued fault and passes clean arms. Stores nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.errors import UserError
from audit.terminal.options import PATH, wide_option
from audit.terminal.tables import echo_rows
from audit.text.printer import echo, note
from audit.text.staged_files import require_writable, write_staged

if TYPE_CHECKING:
    from audit.selftest.engines import EngineControls
    from audit.selftest.work import SelfTestPlan, SelfTestResult


@click.command("selftest")
@click.option("--quick", is_flag=True, help="Gross faults, 3 seeds, small arms, 60 clean arms: two minutes.")
@click.option("--default-suite", is_flag=True, help="Each fault with a suite's default checks and settings only.")
@click.option("--mutate", is_flag=True, help="Change one quantity of a clean record after another; judge each.")
@click.option("--fault", "chosen", metavar="NAME", multiple=True, help="A fault; repeat for more. Default: all.")
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds per fault and size. Default: 20.")
@click.option("--most", type=click.IntRange(min=256), help="Size of the largest arm in tokens. Default: 200000.")
@click.option("--most-outside", type=click.IntRange(min=256), help="Largest arm without the record. Default: 4096.")
@click.option("--clean", type=click.IntRange(min=0), help="Number of clean arms. Default: 1000.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--json", "out", metavar="FILE", type=PATH, help="Also write all counts as JSON.")
@click.option("--markdown", "page", metavar="FILE", type=PATH, help="Also write the tables.")
@wide_option
def command(
    quick: bool,
    default_suite: bool,
    mutate: bool,
    chosen: tuple[str, ...],
    seeds: int | None,
    jobs: int,
    out: Path | None,
    page: Path | None,
    **sizes: int | None,
) -> None:
    """Run deliberately broken arms and clean arms, and judge both.

    Some check must catch every fault of the catalogue in nine of ten seeds, and clean arms must raise no more alarms
    than the checks allow. All checks run with their default parameters, over scripted models. The same command prints
    the same bytes.

    With --default-suite each fault runs in a suite that names its proposer, rule, parameters and models and leaves all
    else at the defaults; the default checks must catch it. No clean arms run.

    With --mutate every column, header, fact, text and statement of one record is changed in up to ten ways, in 3 clean
    arms of each of 10 kinds (--quick: a fiftieth of the changes of one). Each change must make a verdict worse, or have
    a reason why it may survive.

    Without --fault, engines of other projects that this Python has run models of an exactly known law, sound ones and
    ones with a planted leak.

    Exit code 0: all faults caught, no excess of alarms; 1: the last lines give the failures; 2: invalid input.
    """
    for path in (out, page):
        if path is not None:
            require_writable(path)
    from audit.selftest import engines, report, work
    from audit.selftest.work import FULL, QUICK, PresetOverrides, planned

    plan = planned(QUICK if quick else FULL, chosen, PresetOverrides(seeds, **sizes), jobs)
    if default_suite or mutate:
        if default_suite and mutate:
            raise UserError("--default-suite and --mutate are two tests; run one after the other")
        if default_suite and page is not None:
            raise UserError("--markdown has no page for --default-suite; use --json")
        _by_default(plan, out) if default_suite else _mutated(seeds, quick, jobs, out, page)
        return
    outcome = work.run(plan, note)
    controls = None if chosen else engines.run_controls(engines.QUICK if quick else engines.FULL, note)
    _print(outcome, controls)
    _write(outcome, controls, out, page)
    _end([*report.failures(outcome), *(controls.failures() if controls else ())])


def _by_default(plan: SelfTestPlan, out: Path | None) -> None:
    """Run the faults in default suites and print their table; raises SystemExit: a fault is not caught."""
    from audit.selftest import default_suite, work

    detections = work.run_by_default(plan, note)
    echo_rows(default_suite.COLUMNS, default_suite.rows(detections))
    if out is not None:
        write_staged({out: _json(default_suite.document(detections))})
    _end(default_suite.failures(detections))


def _mutated(seeds: int | None, quick: bool, jobs: int, out: Path | None, page: Path | None) -> None:
    """Change records of clean arms and print what survives; raises SystemExit: a change survives without a reason."""
    from audit.selftest import mutation_report, work

    plan = work.QUICK_MUTATIONS if quick else work.FULL_MUTATIONS
    arms = work.run_mutations(replace(plan, seeds=seeds or plan.seeds), jobs, note)
    echo_rows(mutation_report.COLUMNS, list(mutation_report.rows(arms)))
    echo("", mutation_report.summary(arms))
    files = {} if out is None else {out: _json(mutation_report.document(arms))}
    write_staged(files if page is None else {**files, page: mutation_report.page(arms).encode()})
    _end(mutation_report.failures(arms))


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def _end(failed: Sequence[str]) -> None:
    echo(*([f"FAILED: {line}" for line in failed] or ["passed"]))
    if failed:
        raise SystemExit(1)


def _print(outcome: SelfTestResult, controls: EngineControls | None) -> None:
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


def _write(outcome: SelfTestResult, controls: EngineControls | None, out: Path | None, page: Path | None) -> None:
    from audit.selftest import report

    files = {}
    if out is not None:
        document = report.document(outcome) | ({"engines": controls.document()} if controls else {})
        files[out] = _json(document)
    if page is not None:
        files[page] = report.page(outcome).encode()
    write_staged(files)
