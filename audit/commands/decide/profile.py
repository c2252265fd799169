"""`audit profile`: the serving profile of a recorded run."""

import click

from audit.gate.shown_profile import shown_profile
from audit.store import Store
from audit.terminal.options import complete_runs, store_option
from audit.text.documents import yaml_text
from audit.text.printer import echo_document


@click.command("profile")
@click.argument("run", default="latest", shell_complete=complete_runs)
@store_option
def command(run: str, store: str) -> None:
    """Print the serving profile of RUN (a ULID, a prefix of one, or latest): what it was asked, and how it ran.

    It is the file that the gate's option --serves takes: the run of a server says what that serves, and the gate
    decides whether another run covers it.
    """
    with Store.open(store, create=False, read_only=True) as opened:
        document = shown_profile(opened, opened.resolve(run))
    echo_document(yaml_text(document).rstrip("\n"))
