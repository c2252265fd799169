"""Faults that replay, q_contract and law catch from whole rows (`full`) and from the sparse record (`topk`).

Each fault whose scenario runs on a pair of models runs on the bundled pair, whose vocabulary has 2,048 tokens, with the
same seeds at both levels. A line says how many seeds each check caught, `full` before `topk`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import click
import torch

from audit.checks import load
from audit.checks.interface import evaluate
from audit.evidence.verdicts import Verdict
from audit.selftest.run_arm import alone
from audit.selftest.scenarios import suite_of
from audit.suite.spec import Suite
from engine import faults
from engine.core.errors import EngineError
from engine.core.types import RecordLevel
from engine.faults.interface import Fault, Scenario

CHECKS = ("replay", "q_contract", "law")
LEVELS = (RecordLevel.FULL, RecordLevel.TOPK)


def on_the_pair(fault: Fault) -> Scenario | None:
    """The fault's scenario over the bundled pair; None if it needs scripts, grammars, tools or filters."""
    scenario = fault.scenario
    special = scenario.tools or scenario.stream or scenario.sampling.structured or scenario.beside
    if special or scenario.proposer not in ("draft_model", "ngram", "specinfer") or scenario.drafts > 1:
        return None
    return replace(scenario, models="bundled")


def caught(suite: Suite) -> set[str]:
    """The checks that report a fault."""
    evidence = alone(suite)
    results = ((name, evaluate(load(name), evidence, {})) for name in CHECKS)
    return {name for name, result in results if result.verdict is Verdict.FAULT}


def at_level(suite: Suite, level: RecordLevel) -> Suite:
    """The suite with its arm recorded at a level."""
    return replace(suite, arms=tuple(replace(arm, record=level) for arm in suite.arms))


def lines(names: list[str], tokens: int, seeds: int) -> Iterator[str]:
    """One line per fault that some check catches at some level."""
    for name in names:
        scenario = on_the_pair(faults.load(name))
        if scenario is None:
            continue
        counts = {level: Counter[str]() for level in LEVELS}
        for seed in range(seeds):
            suite = suite_of(scenario, name, seed, tokens, CHECKS)
            for level in LEVELS:
                try:
                    counts[level].update(caught(at_level(suite, level)))
                except EngineError:
                    break
        if any(counts.values()):
            cells = (" / ".join(str(counts[level][check]) for level in LEVELS) for check in CHECKS)
            yield f"{name:<36}" + "".join(f"{cell:<14}" for cell in cells).rstrip()


@click.command()
@click.option("--tokens", type=click.IntRange(min=64), default=512, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--fault", "names", multiple=True, help="Default: all.")
def main(tokens: int, seeds: int, names: tuple[str, ...]) -> None:
    """What the sparse record loses: seeds caught at full / topk, by fault and check."""
    torch.set_num_threads(1)
    click.echo(f"{'fault':<36}" + "".join(f"{name:<14}" for name in CHECKS).rstrip())
    for line in lines(list(names) or list(faults.REGISTRY), tokens, seeds):
        click.echo(line)
