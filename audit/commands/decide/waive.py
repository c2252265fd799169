"""`audit waive`: sign a waiver of one unmet requirement. Decides as the gate does, and records no decision."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from audit.attest.signing import sign_and_store
from audit.attest.statement import SHORT
from audit.attest.waivers import Author, PolicyReference, RunReference, Waiver, waiver_statement
from audit.errors import CannotDecide, UserError
from audit.evidence import environment as evidence
from audit.gate.decision import Decision, Reason
from audit.gate.policy import load_policy
from audit.store import Store
from audit.store.base import keys
from audit.terminal.options import PATH, complete_runs, deadline, store_option
from audit.terminal.tables import cell
from audit.text.printer import echo, note
from audit.text.unsafe import quoted


@dataclass(frozen=True, slots=True)
class Wanted:
    """The caller's choice; None stands for any value."""

    requirement: str
    arm: str | None
    check: str | None
    about: str | None

    def names(self, reason: Reason) -> bool:
        """True if the reason has all that is named."""
        asked = ((self.arm, reason.arm), (self.check, reason.check), (self.about, reason.about))
        return reason.requirement == self.requirement and all(wish in (None, value) for wish, value in asked)


@click.command("waive")
@click.argument("run", shell_complete=complete_runs)
@click.option("--policy", required=True, metavar="FILE", help="The policy: a file, or a packaged one's name.")
@click.option("--requirement", required=True, metavar="NAME", help="The unmet requirement, as audit gate names it.")
@click.option("--arm", metavar="NAME", help="The arm, if several reasons have the requirement.")
@click.option("--check", metavar="NAME", help="The check, if several reasons have the requirement.")
@click.option("--about", metavar="NAME", help="The parameter, situation or count, if several reasons have the rest.")
@click.option("--reason", required=True, metavar="TEXT", help="Why the requirement may pass unmet.")
@click.option("--expires", required=True, metavar="WHEN", help="Duration or date, such as 14d or 2027-01-31.")
@click.option("--key", "key_file", type=PATH, required=True, help="Private key that signs.")
@click.option("--ticket", metavar="TEXT", help="Reference to a change or an incident.")
@click.option("--actor", metavar="NAME", help="Name of the requester. Default: the user's login name.")
@store_option
def command(
    run: str,
    policy: str,
    requirement: str,
    reason: str,
    expires: str,
    key_file: Path,
    ticket: str | None,
    actor: str | None,
    store: str,
    **wanted: Any,
) -> None:
    """Sign a waiver of one unmet requirement of RUN (a ULID, a prefix of one, or latest) under a policy.

    The waiver is a signed statement in the store and in its log. It names one reason of the decision that audit gate
    would make now, this record and this version of the policy, and touches nothing else. The policy says who may
    waive what, for how long, and how many others must approve with `audit review --waiver`.
    """
    # imported late: deciding needs the checks, and with them numpy and scipy
    from audit.gate.decide import decide
    from audit.gate.facts import NOTHING
    from audit.gate.judge import considered
    from audit.gate.judgement import GateRequest
    from audit.gate.waivers import protection, request_problem

    key, rules, now = keys.read_private(key_file), load_policy(policy), datetime.now(UTC)
    until, who = deadline(expires, now), actor or evidence.actor()
    if rules.parts.waivers is None:
        raise UserError(f"policy {rules.name} accepts no waivers; add waivers: to it, with keys and requirements")
    with Store.open(store, create=False) as opened:
        judging = GateRequest(
            rules, (), who, now, no_subject=True, announce=lambda name: note(f"checking {cell(name)}")
        )
        judgement = considered(opened, run, judging)
        facts = judgement.facts
        if facts is None or not facts.finished or facts.broken:
            text = "; ".join(reason.text for reason in judgement.outcome.reasons)
            raise CannotDecide(f"nothing of this run can be waived: {text}")
        # without the waivers that hold already, so that one can be renewed
        outcome = decide(replace(facts, stated=NOTHING), rules, (), now, no_subject=True)
        unmet = _one(outcome.reasons, Wanted(requirement, **wanted))
        waiver = Waiver(
            run=RunReference(facts.run.ulid, str(facts.run.record_root)),
            policy=PolicyReference(rules.name, rules.sha256),
            unmet=unmet.name,
            reason=reason,
            ticket=ticket,
            author=Author(who, key.public, now),
            until=until,
        )
        problem = protection(unmet, facts) or request_problem(waiver, facts, rules, now)
        if problem is not None:
            raise UserError(f"policy {rules.name} would refuse this waiver: {problem}")
        (signed,) = sign_and_store(opened, [waiver_statement(waiver)], [key], facts.run.ulid, now)
    echo(f"waiver     {signed.payload_sha256}")
    echo(f"waives     {unmet}")
    echo(f"until      {until:%Y-%m-%d %H:%M:%S} UTC")
    if rules.parts.waivers.approvals:
        echo(f"next       others run: {_approval(facts.run.ulid, signed.payload_sha256[:SHORT])}")


def _approval(run: str, waiver: str) -> str:
    """The command with which another person approves a waiver."""
    return f"audit review {run} --waiver {waiver} --outcome approve --comment WORDS --key KEY"


def _one(reasons: Sequence[Reason], wanted: Wanted) -> Reason:
    """The unmet requirement that the caller names; raises UserError: none, or several."""
    unmet = [reason for reason in reasons if reason.answer is not Decision.ALLOW]
    named = [reason for reason in unmet if wanted.names(reason)]
    if len(named) == 1:
        return named[0]
    listed = "; ".join(dict.fromkeys(str(reason.name) for reason in named or unmet)) or "none"
    if named:
        raise UserError(f"--requirement {quoted(wanted.requirement)}: several; add --arm, --check or --about: {listed}")
    raise UserError(f"--requirement {quoted(wanted.requirement)}: no such requirement is unmet; unmet: {listed}")
