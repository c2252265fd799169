"""`audit show`: one run's facts, arms and verdicts, or one of its requests. Only displays what is stored."""

from collections.abc import Mapping, Sequence

import click

from audit.attest.statement import SHORT
from audit.report.tables.acceptance import ArmEstimates, contradiction_lines
from audit.report.tables.known_defects import defect_lines
from audit.report.tables.looks import look_lines
from audit.report.tables.results import Results, SignedEntry, results
from audit.report.tables.verdicts import account_lines, faults_of, marked, record_lines, scope_rows
from audit.serve.completion_id import run_of
from audit.store import Store, StoredArm, StoredCheck, StoredRun
from audit.store.base.values import DraftCounts
from audit.store.writing.contents import withholds
from audit.terminal.options import complete_runs, json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_section
from audit.text.printer import echo

ARMS = ("arm", "kind", "level", "lossless", "requests", "steps", "drafted", "accepted", "tokens")
ESTIMATES = ("arm", "estimator", "value", "unit", "requests", "every one counts the same", "in AIPerf")
DRAFTS = ("arm", "versions", "steps", "first", "last")
SCOPES = ("arm", "decoded together", "drafted", "shape", "numerics", "device")
CHECKS = ("arm", "check", "claim", "verdict", "level", "n", "effect", "bound", "margin", "summary")


@click.command("show")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.argument("request", required=False)
@json_option
@wide_option
@store_option
def command(run: str, request: str | None, as_json: bool, store: str) -> None:
    """Show RUN (an unambiguous prefix of its id, or `latest`), or one REQUEST of it token by token.

    REQUEST is CASE#SAMPLE, as findings name it, of the first candidate that has it, or ARM/CASE#SAMPLE. Its page has
    every drafted and emitted token with its role (accepted, rejected, recovered, bonus, plain), p, q, the random number
    that decided it and the lead of the best score, and what the record says about grammar, tool calls and filters.

    The id of a completion that `audit serve` gave names both: `audit show ID`, or ID#1 for its second choice.
    """
    completion = run_of(run)
    if completion is not None and request is None:
        run, request = completion, run if "#" in run else f"{run}#0"
    with Store.open(store, create=False, read_only=True) as opened:
        ulid = opened.resolve(run)
        if request is not None:
            # imported late: reading a record needs numpy
            from audit.commands.look.show_request import show_request

            show_request(opened, opened.load_run(ulid), request, as_json=as_json)
            return
        _show(opened, ulid, as_json)


def _show(store: Store, ulid: str, as_json: bool) -> None:
    """Print a run while its store is open, because the store names the odd value behind a failure."""
    shown, drafts, judged = results(store, ulid), store.draft_versions(ulid), store.judgements(ulid)
    erasure_lines = _erasures(store, ulid)
    if as_json:
        echo_json(shown)
        return
    _facts(shown.run, shown.checks)
    faults = faults_of(shown.run.arms)
    echo_section("arms", ARMS, marked([_arm(arm) for arm in shown.run.arms], faults))
    echo(*(f"  {cell(line)}" for line in account_lines(shown.run.arms)))
    echo_section("scope of the verdicts", SCOPES, marked(scope_rows(shown.checks), faults))
    _estimates(shown.estimates, faults)
    if drafts:
        echo_section("drafts that learn (audit query draft_versions)", DRAFTS, marked(_drafts(drafts), faults))
    echo_section("checks", CHECKS, marked([_check(check) for check in shown.checks], faults))
    for finding in (other for check in shown.checks for other in check.findings[:3]):
        echo(f"  {cell(finding.request)} step {finding.step}: {cell(finding.message)}")
    echo(*(f"  {cell(line)}" for line in defect_lines(shown.run.arms, shown.checks)))
    for judgement in judged:
        version = judgement.code.get("version") or "unknown"
        echo("", f"judged again: by {cell(judgement.actor)}, {cell(judgement.created_at)}, version {cell(version)}")
    for line in erasure_lines:
        echo("", line)
    _outcomes(shown)


def _erasures(store: Store, run: str) -> list[str]:
    """A line for each erasure of the run's content."""
    return [
        f"erased: content of {erasure.requests} requests, findings of {erasure.results} results, {cell(erasure.at)}, "
        f"by {cell(erasure.actor)}: {cell(erasure.reason)}"
        for erasure in store.erasures(run)
    ]


def _facts(run: StoredRun, checks: Sequence[StoredCheck]) -> None:
    ended = "not ended" if run.finished_at is None else f"ended {cell(run.finished_at)}"
    lines = [
        ("run", run.ulid),
        ("suite", f"{cell(run.suite_name)}  sha256:{run.suite_sha256}"),
        ("status", f"{run.status}" + ("" if run.exit_code is None else f", exit code {run.exit_code}")),
        ("time (UTC)", f"started {cell(run.started_at)}, {ended}"),
        ("actor", cell(run.actor)),
        ("code", cell(run.code_commit or f"version {run.environment.code.get('version') or 'unknown'}")),
        ("environment", f"sha256:{run.environment.sha256}"),
        *((used.role, f"{cell(used.name)}  sha256:{used.sha256}") for used in run.artifacts),
        *([("text", "off: content was never written")] if any(withholds(arm.spec) for arm in run.arms) else []),
        ("record root", run.record_root or "none: the run is not finished"),
        ("content root", run.content_root or "none"),
    ]
    lines += [("record", cell(line)) for line in record_lines(run.arms)]
    lines += [("looks", cell(line)) for line in look_lines(run, checks)]
    width = max(len(name) for name, _ in lines)
    echo(*(f"{name.ljust(width)}  {value}" for name, value in lines))


def _arm(arm: StoredArm) -> tuple[object, ...]:
    counts = arm.counts
    facts = (arm.name, arm.kind, arm.level.name, "yes" if arm.lossless else "no")
    return (*facts, counts.requests, counts.steps, counts.drafted, counts.accepted, counts.output)


def _estimates(arms: Sequence[ArmEstimates], faults: Mapping[str, str]) -> None:
    """Print the estimators of acceptance; several are in use, so each row has its name."""
    rows = [
        (one.arm, value.estimator, value.value, value.unit, value.requests, value.weighs, value.aiperf)
        for one in arms
        for value in one.values
    ]
    if rows:
        echo_section("acceptance by estimator", ESTIMATES, marked(rows, faults))
    echo(*(f"  {cell(line)}" for line in contradiction_lines(arms)))


def _drafts(versions: Sequence[DraftCounts]) -> list[tuple[object, ...]]:
    """Per arm, the number of draft versions, and the first and last with a prefix of the digest."""
    rows: list[tuple[object, ...]] = []
    for arm in dict.fromkeys(version.arm for version in versions):
        own = [version for version in versions if version.arm == arm]
        ends = (f"{item.number} sha256:{item.sha256[:SHORT]}" for item in (own[0], own[-1]))
        rows.append((arm, len(own), sum(item.steps for item in own), *ends))
    return rows


def _check(check: StoredCheck) -> tuple[object, ...]:
    facts = (check.arm, check.check, check.claim, check.verdict, check.level.name, check.n)
    return (*facts, check.effect, check.bound, check.margin, check.summary)


def _signed(entry: SignedEntry) -> str:
    """A waiver or a review as a line; its signature holds, and whether it counts is for a policy to say."""
    stated, key = entry.stated, str(entry.stated["key"]).partition("+")[0]
    end = "" if stated["until"] is None else f", until {stated['until']}"
    by = f"by {stated['actor']}, key {key}, {stated['at']}{end}"
    if entry.kind == "waiver":
        what = ", ".join(str(part) for part in stated["waives"].values() if part is not None)
        return f"waiver {entry.id[:SHORT]}: {what} under policy {stated['policy']['name']}, {by}: {stated['reason']}"
    about = "the run" if stated["waiver"] is None else f"waiver {stated['waiver'][:SHORT]}"
    role = "" if stated["role"] is None else f" as {stated['role']}"
    return f"review {entry.id[:SHORT]}: {stated['outcome']} {about}{role}, {by}: {stated['comment']}"


def _outcomes(shown: Results) -> None:
    for entry in shown.signed:
        echo("", _signed(entry))
    for decision in shown.decisions:
        reasons = "; ".join(cell(reason) for reason in decision.reasons)
        echo("", f"decision: {decision.decision} by {cell(decision.actor)}, {cell(decision.created_at)}: {reasons}")
    for attachment in shown.attachments:
        echo("", f"attached: {attachment.format} {cell(attachment.location)} sha256:{attachment.report_after}")
