"""`audit diff`: what differs between two stored runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from audit.store import Store
from audit.terminal.options import complete_runs, json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_rows, echo_section
from audit.text.printer import echo

if TYPE_CHECKING:
    from audit.report.comparisons.run_diff import Accepted, RunDiff

SETTINGS = ("setting", "a", "b")
VERDICTS = ("result", "a", "b")
ACCEPTANCE = ("arm", "part", "a", "b", "rate a", "rate b")
CONTENT = {
    True: "the same: every prompt, parameter, stream, output and decision",
    False: "different",
    None: "not compared: a run has no content root",
}
SAME = "no difference"
OUTPUTS = ("arm", "equal", "different", "other prompt or parameters", "in one run only")


@click.command("diff")
@click.argument("a", shell_complete=complete_runs)
@click.argument("b", default="latest", shell_complete=complete_runs)
@click.option("--most", default=3, show_default=True, type=click.IntRange(min=0), help="First divergences per arm.")
@json_option
@wide_option
@store_option
@click.pass_context
def command(ctx: click.Context, a: str, b: str, most: int, as_json: bool, store: str) -> None:
    """Show what differs between runs A and B: settings, verdicts, acceptance by domain and position, outputs.

    Arms are compared by name, requests by case and sample. A request whose output differs is shown at its first
    divergence: both tokens, each run's lead over its next best token, and both continuations.

    Exit code 0: verdicts and outputs are the same; 1: some differ.
    """
    # imported late: reading records needs numpy
    from audit.report.comparisons.run_diff import run_diff

    with Store.open(store, create=False, read_only=True) as opened:
        diff = run_diff(opened, opened.resolve(a), opened.resolve(b))
        if as_json:
            echo_json(diff)
        else:
            _print(diff, most)
        ctx.exit(0 if diff.same else 1)


def _print(diff: RunDiff, most: int) -> None:
    echo(f"a  {diff.a}", f"b  {diff.b}")
    echo(f"content  {CONTENT[diff.same_content]}")
    echo_section("settings", SETTINGS, [(item.place, item.a, item.b) for item in diff.settings], SAME)
    echo_section("verdicts", VERDICTS, [(item.place, item.a, item.b) for item in diff.verdicts], SAME)
    rows = [(item.arm, item.part, _count(item.a), _count(item.b), item.a.rate, item.b.rate) for item in diff.acceptance]
    echo_section("acceptance (accepted of drafted)", ACCEPTANCE, rows, SAME)
    outputs = [
        (output.arm, output.equal, len(output.partings), output.unlike, output.unpaired) for output in diff.outputs
    ]
    echo("", "outputs")
    echo_rows(OUTPUTS, outputs)
    for other in diff.outputs:
        for parting in other.partings[:most]:
            tokens = " and ".join("none" if token is None else str(token) for token in parting.tokens)
            leads = " and ".join("unknown" if lead is None else f"{lead:.4g}" for lead in parting.margins)
            line = f"{other.arm} {parting.request}: token {parting.index} is {tokens}, leads {leads}; {parting.words}"
            echo(f"  {cell(line)}")
        if len(other.partings) > most:
            echo(f"  {cell(other.arm)}: {len(other.partings) - most} more; raise --most")


def _count(part: Accepted) -> str:
    return f"{part.accepted} of {part.drafted}"
