"""`audit db redact`: erase prompts, outputs, tokens and findings of runs, and keep the evidence."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from audit.errors import UserError
from audit.evidence.environment import actor
from audit.store import Store
from audit.store.writing.erasure import ErasurePlan
from audit.terminal.options import store_option
from audit.terminal.tables import cell
from audit.text.printer import echo

AGE: Final = re.compile(r"([1-9]\d{0,4})d")


@click.command("redact")
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
        for other in plans:
            echo(_line(other))
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
