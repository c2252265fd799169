"""`audit import`: a bundle's run into a store."""

from __future__ import annotations

from pathlib import Path

import click

from audit.commands.options import store_option
from audit.commands.tables import cell
from audit.errors import UserError
from audit.store import Store
from audit.text.printer import echo


@click.command("import")
@click.argument("bundle", type=click.Path(path_type=Path))
@store_option
def command(bundle: Path, store: str) -> None:
    """Verify BUNDLE, a file of `audit export`, and add its run to a store.

    The run keeps its id. An event of the run names the bundle's digest. A run that is there already with the same
    content stays as it is; one with another content is refused. All of the run is added, or nothing.
    """
    from audit.store.bundle.verify import file_digest, opened

    with opened(bundle) as source:
        for broken in source.broken[:1]:
            raise UserError(cell(f"{bundle}: {broken.place}: {broken.message}; nothing was imported"))
        with Store.open(store, create=True) as target:
            added = target.import_run(source.store, source.run, file_digest(bundle))
    echo(f"run {source.run} {'imported' if added else 'was there already, with the same content'}")
