"""`audit db`: the store's revision, integrity and log, and the erasure of what runs have in plain text."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from audit.errors import CannotDecide, UserError
from audit.evidence.environment import actor
from audit.store import Store, migrate
from audit.store.base import keys
from audit.store.base.connection import parse_url, shown
from audit.store.ledger import notes, proof
from audit.store.ledger.notes import TreeHead
from audit.store.writing.erasure import ErasurePlan
from audit.terminal.options import PATH, complete_runs, store_option
from audit.terminal.tables import cell
from audit.text.printer import echo
from audit.text.staged_files import staged

SHOWN: Final = {
    "run": ("ulid", "suite_name", "actor", "started_at"),
    "state": ("status", "exit_code", "tokens", "record_root"),
    "check_result": ("name", "verdict", "n", "arm_id", "created_at"),
    "registration": ("suite_name", "suite_sha256", "policy_name", "policy_sha256", "created_at"),
}
"""Columns of a proven row that are printed."""
AGE: Final = re.compile(r"([1-9]\d{0,4})d")


@click.group("db")
def command() -> None:
    """Maintain the provenance store."""


@command.command("upgrade")
@store_option
def upgrade(store: str) -> None:
    """Create the store, or upgrade it to the revision that this version needs."""
    migrate.upgrade(store)
    echo(f"{shown(parse_url(store))}: revision {migrate.current(store)}")


@command.command("current")
@store_option
def current(store: str) -> None:
    """Print the store's revision."""
    echo(migrate.current(store))


@command.command("check")
@click.argument("runs", nargs=-1, shell_complete=complete_runs)
@click.option("--checkpoint", type=PATH, help="Signed checkpoint kept outside the store.")
@click.option("--key", type=PATH, help="Public key of the checkpoint.")
@store_option
def check(runs: tuple[str, ...], checkpoint: Path | None, key: Path | None, store: str) -> None:
    """Recompute the log and every hash of RUNS (default: all runs); exit 1 if anything changed.

    With --checkpoint, also whether the log continues the one that was signed.
    """
    if (checkpoint is None) != (key is None):
        raise UserError("give --checkpoint and --key together: the signed note, and the public key that verifies it")
    kept = () if checkpoint is None or key is None else (_opened(checkpoint, keys.read_public(key)),)
    with Store.open(store, create=False, read_only=True) as opened:
        damage = (*opened.damage(tuple(opened.resolve(run) for run in runs)), *opened.damaged_views())
        broken = [f"{cell(item.place)}: {cell(item.message)}" for item in damage]
        broken += [f"{checkpoint}: {message}" for message in opened.check_checkpoints(kept)] if kept else []
        erased, withheld = opened.erased_requests(), opened.erased_requests(never_written=True)
    echo(*broken)
    echo(f"{opened.url}: {'whole' if not broken else f'{len(broken)} places are not as they were'}")
    if erased:
        echo(f"content of {erased} requests was erased, on record")
    if withheld:
        echo(f"content of {withheld} requests was never written (text: off)")
    raise SystemExit(1 if broken else 0)


def _opened(path: Path, key: keys.PublicKey) -> TreeHead:
    return notes.opened(_read(path), key, str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', 'not text')}") from error


@command.command("checkpoint")
@click.option("--key", required=True, type=PATH, help="Private key of `audit keys init`.")
@click.option("--out", required=True, type=PATH, help="File for the signed note.")
@store_option
def checkpoint(key: Path, out: Path, store: str) -> None:
    """Sign size and root of the log, and write the note to --out, to be kept outside the store.

    Refuses a log that does not continue the store's checkpoints and the one in --out, if there is one.
    """
    signer = keys.read_private(key)
    earlier = (_opened(out, signer.public),) if out.exists() else ()
    with Store.open(store, create=False) as opened:
        for message in opened.check_checkpoints((*opened.checkpoints(), *earlier)):
            raise CannotDecide(f"{opened.url}: not signed: {message}")
        note: list[str] = []

        def sign(head: TreeHead) -> str:
            note.append(notes.signed(head, signer))
            return note[0]

        head = opened.add_checkpoint(sign)
    with staged({out: note[0].encode()}):
        echo(f"{out}: {head.size} entries, root {head.root.hex()}")


@command.command("prove")
@click.argument("run", shell_complete=complete_runs)
@click.option("--out", required=True, type=PATH, help="File for the proof, JSON.")
@store_option
def prove(run: str, out: Path, store: str) -> None:
    """Write a proof that the ending and the verdicts of RUN are in the log of the last checkpoint."""
    with Store.open(store, create=False, read_only=True) as opened:
        document = opened.prove(opened.resolve(run))
    with staged({out: (json.dumps(document, indent=1) + "\n").encode("ascii")}):
        echo(f"{out}: {len(document['entries'])} entries of run {document['run']}")


@command.command("verify-proof")
@click.argument("file", type=PATH)
@click.option("--key", required=True, type=PATH, help="Public key of the checkpoint.")
def verify_proof(file: Path, key: Path) -> None:
    """Verify a proof of `audit db prove` without a store, and print what it shows."""
    try:
        document = json.loads(_read(file))
    except ValueError as error:
        raise UserError(f"{file}: not JSON, so not a proof of audit db prove") from error
    proven = proof.verify(document, keys.read_public(key), str(file))
    for row in proven.rows:
        shown_values = ((name, row.values[name]) for name in SHOWN[row.kind])
        echo(cell(f"{row.kind}: " + ", ".join(f"{name} {value}" for name, value in shown_values)))
    echo(f"{file}: proven, in a log of {proven.head.size} entries")


@command.command("redact")
@click.argument("run", required=False)
@click.argument("requests", nargs=-1, metavar="[REQUEST]...")
@click.option("--reason", required=True, help="Why; the store keeps it.")
@click.option("--older-than", metavar="DAYS", help="All ended runs that started longer ago, such as 180d.")
@click.option("--yes", is_flag=True, help="Erase. Without it, list what would be erased.")
@store_option
def redact(
    run: str | None, requests: tuple[str, ...], reason: str, older_than: str | None, yes: bool, store: str
) -> None:
    """Erase the content of RUN, or of its REQUESTs: prompts, outputs, tokens, traces, findings.

    REQUEST is ARM/CASE#SAMPLE, or CASE#SAMPLE in every arm. Verdicts, counts and hashes stay, and every hash still
    holds; `show REQUEST`, `judge`, `replay` and `diff` cannot decide on erased requests afterwards.
    """
    if (run is None) == (older_than is None):
        raise UserError("name a RUN, or give --older-than, such as 180d")
    if not reason.strip():
        raise UserError("--reason is empty; write why the content is erased")
    before = None if older_than is None else datetime.now(UTC) - _age(older_than)
    with Store.open(store, create=False, read_only=not yes) as opened:
        runs = (opened.resolve(str(run)),) if before is None else opened.older_than(before)
        plans = [item for item in (opened.plan_erasure(ulid, requests) for ulid in runs) if not item.empty]
        echo(*(_line(other) for other in plans))
        if yes:
            opened.erase(plans, reason, actor())
    if not plans:
        echo("nothing is left to erase")
        return
    total = f"{sum(len(plan.requests) for plan in plans)} requests in {len(plans)} runs"
    echo(f"erased: {total}" if yes else f"would erase: {total}; to erase them, add --yes")


def _line(planned: ErasurePlan) -> str:
    return (
        f"{cell(planned.run)}: content of {len(planned.requests)} requests, findings of {len(planned.findings)} results"
    )


def _age(text: str) -> timedelta:
    match = AGE.fullmatch(text)
    if match is None:
        raise UserError(f"--older-than {text!r} is not a number of days; write it as 180d")
    return timedelta(days=int(match[1]))
