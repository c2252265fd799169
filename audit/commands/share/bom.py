"""`audit bom`: write a run's bill of materials."""

import json

import click

from audit.attest.bom import bom
from audit.attest.facts import read_run
from audit.store import Store
from audit.terminal.options import complete_runs, store_option
from audit.text.printer import echo_document


@click.command("bom")
@click.argument("run", shell_complete=complete_runs)
@store_option
def command(run: str, store: str) -> None:
    """Print a CycloneDX 1.7 bill of materials of RUN: models, packages, speculation, certified claims."""
    with Store.open(store, create=False, read_only=True) as opened:
        echo_document(json.dumps(bom(read_run(opened, run)), indent=2))
