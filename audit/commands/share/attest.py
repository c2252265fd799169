"""`audit attest`: sign statements about a run. Knows no predicate."""

from datetime import UTC, datetime
from pathlib import Path

import click

from audit.attest.facts import read_run
from audit.attest.predicates import KINDS, statement
from audit.attest.signing import checkpoint, sign_and_store
from audit.store import Store
from audit.store.base import keys
from audit.terminal.options import PATH, complete_runs, store_option
from audit.text.documents import mistake
from audit.text.printer import echo
from audit.text.staged_files import require_new, staged


@click.command("attest")
@click.argument("run", shell_complete=complete_runs)
@click.option("--key", "key_files", type=PATH, required=True, multiple=True, help="Private key; repeatable.")
@click.option(
    "--out", type=PATH, default=Path(), show_default="here", help="Folder for the envelopes; made if missing."
)
@click.option("--type", "kinds", type=click.Choice(tuple(KINDS)), multiple=True, help="Statements. Default: all.")
@store_option
def command(run: str, key_files: tuple[Path, ...], out: Path, kinds: tuple[str, ...], store: str) -> None:
    """Sign statements about RUN (a ULID, a prefix of one, or latest), and record them.

    Writes one DSSE envelope per statement: in-toto's test-result, the speculation record (audit schema speculation),
    and an eval-result. If no checkpoint covers the run, the first key signs one. Check with: audit verify FILE.
    """
    signers = tuple(map(keys.read_private, key_files))
    with Store.open(store, create=False) as opened:
        facts = read_run(opened, run)
        if facts.proof is None:
            checkpoint(opened, signers[0])
            facts = read_run(opened, run)
        ulid = facts.run.ulid
        files = {kind: out / f"{ulid}.{kind}.intoto.json" for kind in dict.fromkeys(kinds or KINDS)}
        # before anything is signed or stored
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise mistake(str(out), None, f"cannot be made ({error.strerror}); choose another out") from error
        for path in files.values():
            require_new(path)
        now = datetime.now(UTC)
        signed = sign_and_store(opened, [statement(kind, facts) for kind in files], signers, ulid, now)
    with staged({path: item.text.encode() for path, item in zip(files.values(), signed, strict=True)}):
        echo(*(f"{kind.ljust(12)} {path}" for kind, path in files.items()))
    echo(f"{'signed by'.ljust(12)} {', '.join(key.name for key in signers)}")
    echo(f"{'registered'.ljust(12)} {_registered(facts.registered_first, bool(facts.registrations))}")


def _registered(first: bool, at_all: bool) -> str:
    if first:
        return "the suite was registered before the run"
    return "the suite was registered after the run began" if at_all else "the suite was not registered"
