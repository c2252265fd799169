"""`audit register`: commit to a suite and a policy before the run."""

from datetime import UTC, datetime

import click

from audit.evidence import environment as evidence
from audit.gate.policy import load_policy
from audit.store import Store
from audit.store.reading.attestations import Registration
from audit.suite.loader import load_suite
from audit.terminal.options import complete_suites, store_option
from audit.text.printer import echo


@click.command("register")
@click.argument("suite", shell_complete=complete_suites)
@click.argument("policy")
@click.option("--actor", metavar="NAME", help="Name recorded with it. Default: the user's login name.")
@store_option
def command(suite: str, policy: str, actor: str | None, store: str) -> None:
    """Put the digests of SUITE and POLICY into the store's log, before the run.

    Statements of later runs of the suite say that it was registered first, and prove it by the order of the log's
    entries. Sign a checkpoint after it (audit db checkpoint) and give it away to show when at the latest it was.
    """
    loaded, rules = load_suite(suite), load_policy(policy)
    who = actor or evidence.actor()
    registration = Registration(loaded.name, loaded.sha256, rules.name, rules.sha256, who, datetime.now(UTC))
    with Store.open(store, create=True) as opened:
        entry = opened.attestations.register(registration)
    echo(f"suite      {loaded.name} sha256:{loaded.sha256}")
    echo(f"policy     {rules.name} sha256:{rules.sha256}")
    echo(f"log entry  {entry}")
