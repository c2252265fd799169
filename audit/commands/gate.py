"""`audit gate`: decide whether a run's evidence lets a deployment through. Knows no rules; the policy has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from audit.commands.completion import complete_runs
from audit.commands.options import store_option
from audit.commands.tables import cell
from audit.evidence import environment as evidence
from audit.gate.judge import GateJudgement, judge, to_json
from audit.gate.policy import PACKAGED, load_policy
from audit.gate.subjects import parse_subject
from audit.store import Store


@click.command("gate")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--policy",
    required=True,
    metavar="FILE",
    help=f"Policy (YAML), or the name of a packaged one: {', '.join(PACKAGED)}.",
)
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="ROLE=DIGEST",
    help="Artifact to deploy: target, draft or tokenizer, as sha256:DIGEST or a model folder. Repeatable.",
)
@click.option("--no-subject", is_flag=True, help="Decide although roles are not named that the policy wants named.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.option("--actor", metavar="NAME", help="Name recorded with the decision. Default: the user's login name.")
@store_option
@click.pass_context
def command(
    context: click.Context,
    run: str,
    policy: str,
    subjects: tuple[str, ...],
    no_subject: bool,
    form: str,
    actor: str | None,
    store: str,
) -> None:
    """Decide on RUN (a ULID, a prefix of one, or latest) and record the decision.

    Exit codes: 0 allow, 1 block, 2 invalid input, 3 cannot decide. Everything but 0 blocks.
    """
    rules = load_policy(policy)
    wanted = tuple(parse_subject(text) for text in subjects)
    with Store.open(store, create=False) as opened:
        who, now = actor or evidence.actor(), datetime.now(UTC)
        judgement = judge(opened, run, rules, wanted, who, now, no_subject=no_subject)
    click.echo(json.dumps(to_json(judgement), indent=2) if form == "json" else "\n".join(map(cell, _lines(judgement))))
    context.exit(judgement.outcome.answer.exit_code)


def _lines(judgement: GateJudgement) -> Iterator[str]:
    run = judgement.run.ulid if judgement.run else "no run"
    answer = judgement.outcome.answer.value.replace("_", " ")
    yield f"{answer}: {run} under policy {judgement.policy.name} sha256:{judgement.policy.sha256}"
    for reason in judgement.outcome.reasons:
        yield f"  {reason.answer.value.replace('_', ' ')}: {reason.requirement}: {reason.text}"
