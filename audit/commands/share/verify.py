"""`audit verify`: check a report against its attached evidence, or a bundle by itself. Knows no report format."""

from collections.abc import Iterator
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from audit.attach.interface import MAX_REPORT_BYTES
from audit.attach.mlflow_run import SCHEME
from audit.attach.statement import read_statement, sidecar_path, statement_path
from audit.attach.verify import evidence_lines, verify
from audit.attest.statement import is_envelope
from audit.attest.verify import TrustOptions
from audit.errors import CannotDecide, UserError
from audit.store.base.keys import read_public
from audit.store.bundle.inclusion import BundleInclusion
from audit.store.ledger.proof import SIGN
from audit.store.verified_bundle import FREE, OpenBundle, file_digest, opened
from audit.terminal.options import PATH, store_option
from audit.terminal.tables import cell
from audit.text.documents import read_bytes
from audit.text.printer import echo, note

PROVED: Final = (
    "every request, step and trace, and the arms, suite, artifacts and environment that they name, are those of the "
    "record root"
)
NOT_PROVED: Final = (
    "who ran it and when, and that the record root is the one that was made then: compare it with a copy from "
    "elsewhere (an attestation, a report)"
)


@click.command("verify")
@click.argument("report", type=PATH)
@click.option("--statement", type=PATH, metavar="FILE", help="The statement. Default: beside the report, .intoto.json.")
@click.option("--judge", is_flag=True, help="Bundle: compute the verdicts again from the record, and compare them.")
@click.option(
    "--key", "--trusted-key", "trusted", type=PATH, multiple=True, help="Public key: trusted (repeatable), or of a log."
)
@click.option("--threshold", type=click.IntRange(min=1), default=1, help="Signed: number of trusted keys that signed.")
@click.option("--max-age", metavar="AGE", help="Signed: oldest moment that is accepted, such as 30d.")
@click.option("--subject", "subjects", multiple=True, metavar="ROLE=DIGEST", help="Signed: what it must be about.")
@click.option("--policy-digest", metavar="sha256:DIGEST", help="Signed decision: the policy that it must be under.")
@click.option("--log-key", "log_keys", type=PATH, multiple=True, help="Signed: key of the log that must hold the run.")
@store_option
@click.pass_context
def command(
    context: click.Context,
    /,
    report: Path,
    statement: Path | None,
    judge: bool,
    trusted: tuple[Path, ...],
    store: str,
    **trust: Any,
) -> None:
    """Check that REPORT, its statement and the store still agree, or recompute every hash of a bundle.

    Of a report, prints the run's verdicts again: verified evidence of a failed run is still evidence of a failure.
    A bundle is a file of `audit export`; no store is needed for it, and the output says what the hashes prove. With
    one --key, the signature of its checkpoint too. A signed statement, of `audit attest` or `audit gate`, is compared
    with a store only if --store names one. A decision verifies only if it is PASSED.

    Exit codes: 0 verified, 1 something differs, 2 invalid input, 3 the statement or the run is missing.
    """
    if report.suffix == ".zip":
        if len(trusted) > 1:
            raise UserError(f"{report}: one key signs the log of a bundle; give --key once")
        context.exit(verify_bundle(report, trusted[0] if trusted else None, judge=judge))
    if judge:
        raise UserError(f"--judge is for bundles, FILE.zip; the verdicts of {report} are those of a run: audit judge")
    options = TrustOptions(trusted, **trust)
    named = store if context.get_parameter_source("store") is not ParameterSource.DEFAULT else None
    if str(report).startswith(SCHEME):
        from audit.commands.share.verify_signed import verify_mlflow

        context.exit(verify_mlflow(report, options, named))
    content = read_bytes(report, MAX_REPORT_BYTES)
    bundle = statement if statement is not None and statement.suffix == ".jsonl" else sidecar_path(report)
    if is_envelope(content) or (bundle.exists() and statement in (None, bundle)):
        from audit.commands.share.verify_signed import verify_report, verify_signed

        signed = verify_signed if is_envelope(content) else partial(verify_report, bundle)
        context.exit(signed(report, content, options, named))
    if options.given:
        raise UserError(f"{report} has no signed statement: there is no {bundle}; name it with --statement")
    bound = read_statement(statement or statement_path(report))
    result = verify(content, bound, store)
    echo(*(f"mismatch: {cell(mismatch)}" for mismatch in result.mismatches))
    if result.unknown is not None:
        echo(f"not confirmed: {cell(result.unknown)}")
    if result.exit_code == 0:
        echo(f"verified: {report} carries the evidence of run {bound.predicate['run']}")
    if not result.mismatches:
        echo(*evidence_lines(bound.predicate))
    context.exit(result.exit_code)


def verify_bundle(path: Path, key: Path | None = None, *, judge: bool) -> int:
    """Print what the hashes of a bundle show; returns the exit code.

    Raises:
        UserError: the bundle is refused, or its checkpoint is not signed by the key.
        CannotDecide: a key is given, and the bundle has no checkpoint.
    """
    with opened(path, None if key is None else read_public(key)) as bundle:
        if key is not None and bundle.inclusion is None:
            raise CannotDecide(f"{path}: it has no checkpoint; sign one before the export: {SIGN}")
        echo(*(f"mismatch: {broken.place}: {broken.message}" for broken in bundle.broken))
        if bundle.broken:
            return 1
        run, checks = bundle.store.load_run(bundle.run), bundle.store.checks(bundle.run)
        requests = sum(arm.counts.requests for arm in run.arms)
        echo(f"verified: {path} holds run {run.ulid} of suite {run.suite_name}")
        echo(f"bundle      sha256:{file_digest(path)}")
        echo(f"record root {bundle.record_root}, recomputed from {requests} requests of {len(run.arms)} arms")
        echo(f"proves      {PROVED}")
        echo(*inclusion_lines(bundle.inclusion))
        echo(f"not proved  {NOT_PROVED}")
        if judge:
            return _judge(bundle)
        how = "compute them again: --judge"
        if bundle.inclusion is None:
            echo(f"not proved  {len(checks)} verdicts, which the record root does not cover; {how}")
            columns = "; ".join(f"{table}: {', '.join(names)}" for table, names in FREE.items())
            echo(f"not proved  columns that the record root does not cover: {columns}")
    return 0


def inclusion_lines(shown: BundleInclusion | None) -> Iterator[str]:
    """Lines on the proof of a log and its limits."""
    if shown is None:
        yield "not proved  that the run is in a log: the bundle has no checkpoint"
        return
    rows = ", ".join(f"{count} {name}" for name, count in shown.proven.items())
    yield f"proves      {rows} are in a log of {shown.head.size} entries, root {shown.head.root.hex()}"
    if shown.head.statements is not None:
        at = f"{shown.head.statements.at.astimezone(UTC):%Y-%m-%d %H:%M}"
        yield f"proves      the store's list of {at} UTC has no other signed statement of the run"
    later = ", ".join(f"{count} {name}" for name, count in shown.later.items() if count)
    if later:
        yield f"not proved  {later}, which the log got after the checkpoint"
    if shown.verified:
        yield f"proves      the key {shown.signer} signed this log"
    else:
        yield f"not proved  that {shown.signer} signed this log: verify it with the public key, --key"


def _judge(bundle: OpenBundle) -> int:
    """Compare the verdicts with those that this version computes from the record."""
    # imported late: the checks need numpy and scipy
    from audit.runs.rejudge import judge_again

    rejudged = judge_again(bundle.store, bundle.run, lambda arm: note(f"checking {arm}"))
    note(*rejudged.arms.unknown)
    for other in rejudged.differences:
        echo(f"differs: {other.arm} {other.check}: {'; '.join(other.changes)}")
    same = len(rejudged.results) - len(rejudged.differences)
    echo(f"judged      {same} of {len(rejudged.results)} results come again from the record")
    return 1 if any(difference.verdict for difference in rejudged.differences) else 0
