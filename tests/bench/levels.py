"""Faults that replay, q_contract and law catch from whole rows (`full`) and from the sparse record (`topk`).

Each fault whose scenario runs on a pair of models runs on the bundled pair, whose vocabulary has 2,048 tokens, with the
same seeds at both levels. Every arm adds one line to a file, so that an interrupted measurement goes on where it ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.evidence.verdicts import Verdict
from audit.selftest.run_arm import alone
from audit.selftest.scenarios import suite_of
from audit.suite.spec import Suite
from engine import faults
from engine.core.errors import EngineError
from engine.core.types import RecordLevel
from engine.faults.interface import Fault, Scenario
from tests.bench.page import ROOT, put

CHECKS = ("replay", "q_contract", "law")
LEVELS = (RecordLevel.FULL, RecordLevel.TOPK)
RESULT = ROOT / "docs" / "record-levels.json"
ARMS = ROOT / "build" / "bench" / "levels.jsonl"


@dataclass(frozen=True, slots=True)
class Arm:
    """One fault, seed and level, and the checks that reported the fault; None if the engine refused the arm."""

    fault: str
    seed: int
    level: RecordLevel
    caught: tuple[str, ...] | None

    def line(self) -> str:
        """The arm as a line of JSON."""
        return json.dumps([self.fault, self.seed, self.level.value, self.caught])


def arm_of(line: str) -> Arm:
    """The inverse of `Arm.line`."""
    fault, seed, level, caught = json.loads(line)
    return Arm(fault, seed, RecordLevel(level), None if caught is None else tuple(caught))


def on_the_pair(fault: Fault) -> Scenario | None:
    """The fault's scenario over the bundled pair; None if it needs scripts, grammars, tools or filters."""
    scenario = fault.scenario
    special = scenario.tools or scenario.stream or scenario.sampling.structured or scenario.beside
    if special or scenario.proposer not in ("draft_model", "ngram", "specinfer") or scenario.drafts > 1:
        return None
    return replace(scenario, models="bundled")


def caught(suite: Suite) -> tuple[str, ...]:
    """The checks that report a fault."""
    evidence = alone(suite)
    return tuple(name for name in CHECKS if evaluate(load(name), evidence, {}).verdict is Verdict.FAULT)


def at_level(suite: Suite, level: RecordLevel) -> Suite:
    """The suite with its arm recorded at a level."""
    return replace(suite, arms=tuple(replace(arm, record=level) for arm in suite.arms))


def measured(names: Iterable[str], tokens: int, seeds: int, known: set[tuple[str, int, RecordLevel]]) -> Iterator[Arm]:
    """The arms that are not known yet, one seed of every fault before the next seed."""
    names = list(names)
    for seed in range(seeds):
        for name in names:
            scenario = on_the_pair(faults.load(name))
            for level in LEVELS if scenario is not None else ():
                if (name, seed, level) not in known:
                    assert scenario is not None
                    suite = at_level(suite_of(scenario, name, seed, tokens, CHECKS), level)
                    try:
                        yield Arm(name, seed, level, caught(suite))
                    except EngineError:
                        yield Arm(name, seed, level, None)


def counted(arms: Iterable[Arm]) -> dict[str, dict[str, list[int]]]:
    """By fault and check the seeds caught at each level, of seeds that ran at both; faults that no check caught have
    no entry for it.
    """
    ran = {(arm.fault, arm.seed, arm.level): arm.caught for arm in arms if arm.caught is not None}
    found: dict[str, dict[str, list[int]]] = {}
    for fault, seed in sorted({(fault, seed) for fault, seed, _ in ran}):
        both = [ran.get((fault, seed, level)) for level in LEVELS]
        for check in CHECKS if None not in both else ():
            hits = [check in (names or ()) for names in both]
            if any(hits):
                counts = found.setdefault(fault, {}).setdefault(check, [0] * len(LEVELS))
                counts[:] = [count + hit for count, hit in zip(counts, hits, strict=True)]
    return found


def document(arms: Iterable[Arm], tokens: int) -> dict[str, object]:
    """The result as JSON."""
    arms = list(arms)
    seeds = len({arm.seed for arm in arms})
    ran = sorted({arm.fault for arm in arms if arm.caught is not None})
    return {"tokens": tokens, "seeds": seeds, "faults": len(ran), "caught": counted(arms)}


def table(result: Mapping[str, object]) -> str:
    """What the sparse record loses, as Markdown."""
    found = result["caught"]
    assert isinstance(found, Mapping)
    rows = ["| check | faults caught at `full` | at `topk` | seeds at `full` | at `topk` |", "|---|---|---|---|---|"]
    lost = ["| lost at `topk` | check | seeds at `full` | at `topk` | caught there by |", "|---|---|---|---|---|"]
    for check in CHECKS:
        counts = {fault: checks[check] for fault, checks in found.items() if check in checks}
        whole, sparse = ([pair[i] for pair in counts.values()] for i in range(2))
        page = f"| [{check}](checks/{check}.md)"
        rows.append(f"{page} | {_hit(whole)} | {_hit(sparse)} | {sum(whole)} | {sum(sparse)} |")
        lost += [_lost(fault, check, found[fault]) for fault, pair in counts.items() if pair[1] < pair[0]]
    head = f"Faults: {result['faults']}. Seeds per fault: {result['seeds']}. Tokens per arm: {result['tokens']}."
    return "\n".join([head, "", *rows, "", *(lost if len(lost) > 2 else ["Nothing is lost."])])


def _lost(fault: str, check: str, counts: Mapping[str, list[int]]) -> str:
    others = [name for name in CHECKS if name in counts and counts[name][1]]
    pair = counts[check]
    return f"| `{fault}` | {check} | {pair[0]} | {pair[1]} | {', '.join(others) or 'none of the three'} |"


def _hit(counts: list[int]) -> int:
    return sum(count > 0 for count in counts)


@click.command()
@click.option("--tokens", type=click.IntRange(min=64), default=512, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--fault", "names", multiple=True, help="Default: all.")
@click.option("--arms", type=click.Path(dir_okay=False, path_type=Path), default=ARMS)
@click.option("--write", is_flag=True, help="Write the result and the table of docs/evidence.md.")
def main(tokens: int, seeds: int, names: tuple[str, ...], arms: Path, write: bool) -> None:
    """What the sparse record loses: seeds caught at full / topk, by fault and check."""
    torch.set_num_threads(1)
    arms.parent.mkdir(parents=True, exist_ok=True)
    before = [arm_of(line) for line in arms.read_text().splitlines()] if arms.exists() else []
    known = {(arm.fault, arm.seed, arm.level) for arm in before}
    with arms.open("a") as out:
        for arm in measured(names or faults.REGISTRY, tokens, seeds, known):
            out.write(arm.line() + "\n")
            out.flush()
            before.append(arm)
    result = document(before, tokens)
    click.echo(table(result))
    if write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
        put("levels", table(result))
