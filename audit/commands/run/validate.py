"""`audit validate`: read a suite and print what it would run. Loads no model and stores nothing."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from audit.suite.access import OPTIONS, outside_of
from audit.suite.allowances import Allowances
from audit.suite.loader import load_suite
from audit.suite.spec import CandidateSpec, Suite
from audit.terminal.options import allow_options, allowed, complete_suites
from audit.text.printer import echo, echo_document
from engine import verify
from engine.backends.access import OutsideAccess


@click.command("validate")
@click.argument("suite", shell_complete=complete_suites)
@allow_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.pass_context
def command(ctx: click.Context, suite: str, as_json: bool) -> None:
    """Check SUITE, a YAML file or the name of a packaged suite, and print what it would run.

    Lists what the suite would touch: environment variables, hosts, programs, code of
    the engine's environment, files outside its folder, models of the hub. What the --allow
    options and the user's configuration do not allow is marked; it does not change the exit code.
    """
    granted = allowed(ctx)
    loaded = load_suite(suite)
    touched = outside_of(loaded)
    if as_json:
        echo_document(json.dumps(_document(loaded, touched, granted), indent=2))
    else:
        echo(*_lines(loaded), *_touched(touched, granted))


def _lines(suite: Suite) -> Iterator[str]:
    yield f"{suite.path}: valid"
    yield f"suite      {suite.name}  sha256:{suite.sha256}"
    mixed = ", mixed" if suite.mixed else ""
    yield f"backend    {suite.backend}, seed {suite.seed}, batches of {suite.batch_size}{mixed}"
    for name, model in suite.models.items():
        yield f"model      {name}: {model.source} ({model.dtype}, {model.loader})"
    for workload, count in Counter(case.workload for case in suite.cases).items():
        yield f"workload   {workload}: {_count(count, 'case')}"
    yield from (f"arm        {arm.name}: {_arm(suite, arm)}" for arm in suite.arms)
    total = sum(requests_of(suite, arm) * arm.sampling.max_new_tokens for arm in suite.arms)
    counts = f"{_count(len(suite.arms), 'arm')}, {_count(len(suite.cases), 'case')}"
    yield f"total      {counts}, at most {total} tokens besides the baselines"


def _touched(touched: Sequence[OutsideAccess], granted: Allowances) -> Iterator[str]:
    if not touched:
        yield "touches    nothing outside its folder"
    for item in touched:
        needs = "" if granted.allows(item) else f": not allowed, needs {OPTIONS[item.kind]}"
        yield f"touches    {item.kind} {item.name} ({item.key}){needs}"


def _document(suite: Suite, touched: Sequence[OutsideAccess], granted: Allowances) -> dict[str, Any]:
    arms = [
        {"arm": arm.name, "requests": requests_of(suite, arm), "max_new_tokens": arm.sampling.max_new_tokens}
        for arm in suite.arms
    ]
    accesses = [
        {"kind": item.kind.value, "name": item.name, "key": item.key, "allowed": granted.allows(item)}
        for item in touched
    ]
    facts = {"path": suite.path, "name": suite.name, "sha256": suite.sha256, "backend": suite.backend}
    return {**facts, "cases": len(suite.cases), "arms": arms, "touches": accesses}


def requests_of(suite: Suite, arm: CandidateSpec) -> int:
    """Greedy arms run each case once, because repetitions would be copies, unless the case lists its own samples."""
    count = 1 if arm.sampling.greedy else suite.samples
    return sum(len(case.repetitions(count)) * (1 + len(case.turns)) for case in suite.cases)


def _arm(suite: Suite, arm: CandidateSpec) -> str:
    requests = requests_of(suite, arm)
    parts = [
        f"{arm.proposer.kind} gamma {arm.proposer.gamma}, {_rule(arm)}, temperature {arm.sampling.temperature:g}",
        f"{_count(requests, 'request')}, at most {requests * arm.sampling.max_new_tokens} tokens",
        f"record {arm.record}" + (f" ({arm.requested_record})" if arm.requested_record else ""),
        f"checks {', '.join(arm.checks) or 'none'}",
    ]
    return "; ".join(parts + ([f"broken on purpose: {arm.fault}"] if arm.fault else []))


def _rule(arm: CandidateSpec) -> str:
    facts = verify.load(arm.verifier, arm.verifier_options).facts
    settings = "".join(f" {key} {value:g}" for key, value in facts.options.items())
    return f"{arm.verifier}{settings}" + ("" if facts.lossless else " (lossy)")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
