"""`audit review`: sign an approval or a rejection of a run, or of a waiver. Knows no rules; a policy has them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from audit.attest import waivers
from audit.attest.facts import read_run
from audit.attest.signing import sign_and_store
from audit.attest.statement import REVIEW, SHORT, WAIVER
from audit.errors import UserError
from audit.evidence import environment as evidence
from audit.gate.policy import load_policy
from audit.gate.waivers import self_approved
from audit.store import Store
from audit.store.base import keys
from audit.terminal.options import PATH, complete_runs, deadline, store_option
from audit.text.printer import echo
from audit.text.unsafe import quoted

LEAST_ID = 8
"""Digits of a waiver's id that a reader compares at least."""


@click.command("review")
@click.argument("run", shell_complete=complete_runs)
@click.option("--key", "key_file", type=PATH, required=True, help="Private key that signs.")
@click.option("--outcome", type=click.Choice([outcome.value for outcome in waivers.ReviewOutcome]), required=True)
@click.option("--comment", required=True, metavar="TEXT", help="What the reviewer has to say.")
@click.option("--role", metavar="NAME", help="Role in which the reviewer decides, as the policy names it.")
@click.option("--waiver", "waiver_id", metavar="ID", help="Review this waiver of the run instead of the run itself.")
@click.option("--policy", metavar="FILE", help="Count under this policy alone. Default: under any, and its waiver's.")
@click.option("--expires", metavar="WHEN", help="Duration or date, such as 30d or 2027-01-31. Default: never.")
@click.option("--actor", metavar="NAME", help="Name of the reviewer. Default: the user's login name.")
@store_option
def command(
    run: str,
    key_file: Path,
    outcome: str,
    comment: str,
    role: str | None,
    waiver_id: str | None,
    policy: str | None,
    expires: str | None,
    actor: str | None,
    store: str,
) -> None:
    """Sign an approval or a rejection of RUN (a ULID, a prefix of one, or latest), or of a waiver for it.

    The review is a signed statement in the store and in its log. Whether it counts is for the policy of a decision to
    say: the key, the role, the age. With --waiver it approves or rejects a waiver (audit waive); nobody approves
    their own. A later review by the same key replaces an earlier one.
    """
    key, now = keys.read_private(key_file), datetime.now(UTC)
    until = None if expires is None else deadline(expires, now)
    if waiver_id is not None and (role is not None or policy is not None):
        raise UserError("--waiver has its own policy, and needs no role; remove --role and --policy")
    rules = None if policy is None else load_policy(policy)
    with Store.open(store, create=False) as opened:
        facts = read_run(opened, run)
        known = waivers.stated(opened.attestations.of_run(facts.run.ulid, (WAIVER, REVIEW)))
        waiver = None if waiver_id is None else _waiver(known.waivers, waiver_id)
        named = None if rules is None else waivers.PolicyReference(rules.name, rules.sha256)
        review = waivers.SignedReview(
            run=waivers.RunReference(facts.run.ulid, str(facts.run.record_root)),
            policy=named if waiver is None else waiver.policy,
            waiver=None if waiver is None else waiver.id,
            outcome=waivers.ReviewOutcome(outcome),
            role=role,
            comment=comment,
            author=waivers.Author(actor or evidence.actor(), key.public, now),
            until=until,
        )
        if waiver is not None and review.outcome is waivers.ReviewOutcome.APPROVE and self_approved(waiver, review):
            raise UserError(f"--waiver {waiver_id}: nobody approves their own waiver; another person and key must")
        (signed,) = sign_and_store(opened, [waivers.review_statement(review)], [key], facts.run.ulid, now)
    echo(f"review     {signed.payload_sha256}")
    echo(f"run        {facts.run.ulid}: {outcome} by {review.author.actor}, key {key.name}")
    if waiver is not None:
        echo(f"waiver     {waiver.id[:SHORT]} of {waiver.unmet}, asked by {waiver.author.actor}")


def _waiver(known: Sequence[waivers.Waiver], name: str) -> waivers.Waiver:
    result = [waiver for waiver in known if len(name) >= LEAST_ID and waiver.id.startswith(name)]
    if len(result) != 1:
        listed = ", ".join(waiver.id[:SHORT] for waiver in known) or "none"
        raise UserError(f"--waiver {quoted(name)}: not the beginning of one waiver's id; this run has: {listed}")
    return result[0]
