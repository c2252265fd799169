"""`audit validate`: read a suite and print what it would run. Loads no model and stores nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from audit.commands.completion import complete_suites
from audit.suite.loader import load_suite
from audit.suite.reach import requests_of, warnings
from audit.suite.spec import CandidateSpec, Suite
from audit.text.unsafe import visible
from engine import verify


@click.command("validate")
@click.argument("suite", shell_complete=complete_suites)
def command(suite: str) -> None:
    """Check SUITE, a YAML file or the name of a packaged suite, and print what it would run.

    Warns of situations that the suite cannot reach; they do not change the exit code.
    """
    loaded = load_suite(suite)
    click.echo("\n".join(map(visible, _lines(loaded))))
    for line in warnings(loaded):
        click.echo(visible(line), err=True)


def _lines(suite: Suite) -> Iterator[str]:
    yield f"{suite.path}: valid"
    yield f"suite      {suite.name}  sha256:{suite.sha256}"
    mixed = ", mixed" if suite.mixed else ""
    yield f"backend    {suite.backend}, seed {suite.seed}, batches of {suite.batch_size}{mixed}"
    for model in suite.models.values():
        yield f"model      {model.name}: {model.source} ({model.dtype}, {model.loader})"
    for workload, count in Counter(case.workload for case in suite.cases).items():
        yield f"workload   {workload}: {_count(count, 'case')}"
    for arm in suite.arms:
        yield f"arm        {arm.name}: {_arm(suite, arm)}"
    total = sum(requests_of(suite, arm) * arm.sampling.max_new_tokens for arm in suite.arms)
    counts = f"{_count(len(suite.arms), 'arm')}, {_count(len(suite.cases), 'case')}"
    yield f"total      {counts}, at most {total} tokens besides the baselines"


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
