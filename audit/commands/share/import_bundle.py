"""`audit import`: a bundle's run into a store, or the figures of another tool."""

from pathlib import Path

import click

from audit.errors import CannotDecide, UserError
from audit.store import Store
from audit.store.base.keys import read_public
from audit.store.ledger.proof import SIGN
from audit.terminal.options import PATH, json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.printer import echo

ESTIMATES = ("estimator", "value", "unit", "requests", "every one counts the same", "in AIPerf")


@click.command("import")
@click.argument("bundle", type=PATH)
@click.option("--format", "kind", type=click.Choice(["bundle", "aiperf"]), default="bundle", show_default=True)
@click.option("--key", type=PATH, help="Public key that signed the bundle's checkpoint: no statement is left out.")
@json_option
@wide_option
@store_option
def command(bundle: Path, kind: str, key: Path | None, as_json: bool, store: str) -> None:
    """Verify BUNDLE, a file of `audit export`, and add its run to a store.

    The run keeps its id. An event of the run names the bundle's digest. A run that is there already with the same
    content stays as it is; one with another content is refused. All of the run is added, or nothing. With --key
    the event says that the bundle has all waivers and reviews that its store listed, which policies on these ask for.

    With --format aiperf, BUNDLE is profile_export.jsonl of AIPerf. Its figures of acceptance are checked and shown by
    estimator, to be read beside those of audit show. They are another tool's figures: no store gets them, and no claim
    is certified from them.
    """
    if kind == "aiperf":
        _aiperf(bundle, as_json=as_json)
        return
    if as_json:
        raise UserError("--json belongs to --format aiperf; audit show --json prints an imported run")
    from audit.store.verified_bundle import file_digest, opened

    signer = None if key is None else read_public(key)
    with opened(bundle, signer) as source:
        for broken in source.broken[:1]:
            raise UserError(cell(f"{bundle}: {broken.place}: {broken.message}; nothing was imported"))
        origin = file_digest(bundle)
        if signer is not None:
            stated = None if source.inclusion is None else source.inclusion.head.statements
            if stated is None:
                raise CannotDecide(f"{bundle}: no checkpoint in it lists statements; before the export: {SIGN}")
            origin += f", statements of {stated.at.isoformat()} by {signer.text}"
        with Store.open(store, create=True) as target:
            added = target.import_run(source.store, source.run, origin)
    echo(f"run {source.run} {'imported' if added else 'was there already, with the same content'}")


def _aiperf(path: Path, *, as_json: bool) -> None:
    from audit.report.comparisons.aiperf import read_aiperf

    figures = read_aiperf(path)
    if as_json:
        echo_json(figures)
        return
    left_out = f"{figures.failed} failed, {figures.warmup} of the warm-up"
    echo(f"figures of AIPerf  {cell(path)}  {figures.requests} requests, {left_out}")
    rows = [(one.estimator, one.value, one.unit, one.requests, one.weighs, one.aiperf) for one in figures.estimates]
    echo("", f"acceptance by estimator, as {cell(', '.join(figures.engines) or 'no engine')} reported it")
    echo_rows(ESTIMATES, rows)
    echo("", "These are another tool's figures: nothing is stored and no claim is certified from them.")
