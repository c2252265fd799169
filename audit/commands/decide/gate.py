"""`audit gate`: decide whether a run's evidence lets a deployment through. Knows no rules; the policy has them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from audit.evidence import environment as evidence
from audit.gate.policy import PACKAGED, load_policy
from audit.gate.serving_profile import SERVABLE, asked_profile
from audit.gate.subjects import parse_subject
from audit.store import Store
from audit.terminal.options import complete_runs, store_option
from audit.terminal.options import policy_digest as expected_digest
from audit.text.printer import echo_document, note
from audit.text.staged_files import require_writable, unwritable

FORMATS = ("text", "json", "junit", "github", "sarif", "markdown")
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
KEY = click.Path(path_type=Path, dir_okay=False)


@click.command("gate")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--policy",
    required=True,
    metavar="FILE",
    help=f"Policy (YAML), or the name of a packaged one: {', '.join(PACKAGED)}.",
)
@click.option("--policy-digest", metavar="sha256:DIGEST", help="Digest that the policy must have.")
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="ROLE=DIGEST",
    help="Artifact to deploy: target, draft, tokenizer, engine/ARM and so on, as sha256:DIGEST or a model folder. "
    "Repeatable.",
)
@click.option("--no-subject", is_flag=True, help="Decide although roles are not named that the policy wants named.")
@click.option(
    "--serves",
    multiple=True,
    metavar="WORD|FILE",
    help=f"What the deployment serves of the policy's list: {', '.join(SERVABLE)} (repeatable), or its serving "
    "profile, FILE.yaml; recorded.",
)
@click.option("--checkpoint", type=FILE, help="Signed checkpoint of the store's log, kept outside the store.")
@click.option("--proof", type=FILE, help="Proof of `audit db prove`, for a bundle.")
@click.option("--key", "key_files", type=KEY, multiple=True, help="Private key that signs the decision; repeatable.")
@click.option("--out", type=KEY, help="New file for the signed decision.")
@click.option(
    "--rego", type=FILE, multiple=True, help="Rego module that must let the deployment through too; repeatable."
)
@click.option(
    "--trust-verdicts",
    is_flag=True,
    help="Do not compute the verdicts from the record; recorded; a policy must accept it (stored_verdicts).",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="Output format.")
@click.option(
    "--summary-file", type=click.Path(path_type=Path, dir_okay=False), help="Append the decision to a Markdown file."
)
@click.option("--warn-only", is_flag=True, help="Exit with 0 where the decision is not allow; recorded as it is.")
@click.option("--actor", metavar="NAME", help="Name recorded with the decision. Default: the user's login name.")
@store_option
@click.pass_context
def command(
    context: click.Context,
    /,
    run: str,
    policy: str,
    policy_digest: str | None,
    subjects: tuple[str, ...],
    serves: tuple[str, ...],
    key_files: tuple[Path, ...],
    out: Path | None,
    rego: tuple[Path, ...],
    form: str,
    summary_file: Path | None,
    actor: str | None,
    store: str,
    **rules: Any,
) -> None:
    """Decide on RUN (a ULID, a prefix of one, latest, or a bundle, FILE.zip) and record the decision.

    The verdicts are computed from the record, as by `audit judge`, after every hash of the run and the store's log
    have been checked. A decision on a bundle needs no store; with --store it is recorded there. With --key it is a
    signed statement (a verification summary) too, whatever the decision: audit verify FILE.

    Exit codes: 0 allow, 1 block, 2 invalid input, 3 cannot decide. Everything but 0 blocks.
    """
    # imported late: deciding needs the checks, and with them numpy and scipy
    from audit.gate.formats import REGISTRY
    from audit.gate.judge import judge, judge_bundle
    from audit.gate.judgement import GateRequest, read_modules
    from audit.gate.record import signer_of

    if summary_file is not None:
        require_writable(summary_file)
    bundle = Path(run).suffix == ".zip"
    stored = not bundle or context.get_parameter_source("store") is not ParameterSource.DEFAULT
    request = GateRequest(
        policy=load_policy(policy),
        subjects=tuple(parse_subject(text) for text in subjects),
        actor=actor or evidence.actor(),
        now=datetime.now(UTC),
        serves=asked_profile(serves),
        expected=expected_digest(policy_digest),
        signer=signer_of(key_files, out, stored=stored),
        rego=read_modules(rego),
        announce=lambda arm: note(f"checking {arm}"),
        **rules,
    )
    if stored:
        with Store.open(store, create=False) as opened:
            judgement = judge_bundle(Path(run), request, opened) if bundle else judge(opened, run, request)
    else:
        judgement = judge_bundle(Path(run), request)
    if summary_file is not None:
        _append(summary_file, REGISTRY["markdown"](judgement))
    echo_document(REGISTRY[form](judgement))
    if judgement.signed is not None:
        kept = f"attestation sha256:{judgement.signed.payload_sha256} of the store" if stored else None
        note(f"signed: {', '.join(str(place) for place in (out, kept) if place)}")
    context.exit(judgement.exit_code)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
    except OSError as error:
        raise unwritable(path, error) from error
