"""`audit validate`: read a suite and print what it would run. Loads no model and stores nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from audit.suite.loader import load_suite
from audit.suite.spec import CandidateSpec, Suite
from engine import verify


@click.command("validate")
@click.argument("suite")
def command(suite: str) -> None:
    """Check SUITE, a YAML file or the name of a packaged suite, and print what it would run."""
    click.echo("\n".join(_lines(load_suite(suite))))


def _lines(suite: Suite) -> Iterator[str]:
    yield f"{suite.path}: valid"
    yield f"suite      {suite.name}  sha256:{suite.sha256}"
    yield f"backend    {suite.backend}, seed {suite.seed}, batches of {suite.batch_size}"
    for model in suite.models.values():
        yield f"model      {model.name}: {model.source} ({model.dtype}, {model.loader})"
    for workload, count in Counter(case.workload for case in suite.cases).items():
        yield f"workload   {workload}: {_count(count, 'case')}"
    for arm in suite.arms:
        yield f"arm        {arm.name}: {_arm(suite, arm)}"
    total = sum(_requests(suite, arm) * arm.sampling.max_new_tokens for arm in suite.arms)
    counts = f"{_count(len(suite.arms), 'arm')}, {_count(len(suite.cases), 'case')}"
    yield f"total      {counts}, at most {total} tokens besides the baselines"


def _arm(suite: Suite, arm: CandidateSpec) -> str:
    requests = _requests(suite, arm)
    parts = [
        f"{arm.proposer.kind} gamma {arm.proposer.gamma}, {_rule(arm)}, temperature {arm.sampling.temperature:g}",
        f"{_count(requests, 'request')}, at most {requests * arm.sampling.max_new_tokens} tokens",
        f"record {arm.record}",
        f"checks {', '.join(arm.checks) or 'none'}",
    ]
    return "; ".join(parts + ([f"broken on purpose: {arm.fault}"] if arm.fault else []))


def _rule(arm: CandidateSpec) -> str:
    facts = verify.load(arm.verifier, arm.verifier_options).facts
    settings = "".join(f" {key} {value:g}" for key, value in facts.options.items())
    return f"{arm.verifier}{settings}" + ("" if facts.lossless else " (lossy)")


def _requests(suite: Suite, arm: CandidateSpec) -> int:
    """Greedy arms run each case once, because repetitions would be copies, unless the case lists its own samples."""
    count = 1 if arm.sampling.greedy else suite.samples
    return sum(len(case.repetitions(count)) for case in suite.cases)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
