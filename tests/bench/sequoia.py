"""`python -m tests.bench.sequoia`: sequoia's tree against chains and k-ary trees of its size, as a page.

Acceptance is measured on one half of the prompts of every domain, and the trees run on the other half, all with the
same seeds. Counts only: the machine's speed does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch

from engine.backends.engine_spec import ModelSource
from engine.backends.interface import Engine, Prompt
from engine.backends.native.backend import open_models
from engine.core.types import Request, SamplingParams
from engine.proposers.tree_planning import Rates, TreeShape, best_shape, chain_shape, expected_tokens, k_ary_shape
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from engine.tools.measure_acceptance import AcceptanceTrials, Drafting, Estimate, measure_trials
from engine.tools.plan_tree import drafting_with, rates_by_level, rates_text
from engine.train.prompts import prompt_rows

PAIRS = {"small": ("bundled:target", "bundled:draft"), "medium": ("bundled:medium", "bundled:medium_draft")}
TEMPERATURES = (0.6, 1.0)
SIZES = (15, 31)
WIDTH = 4
LEVELS = 3
DEEPEST = 12
RESAMPLES = 2000
PAGE = Path(__file__).parents[2] / "docs" / "proposers" / "sequoia.md"


@dataclass(frozen=True)
class Halves:
    """Requests to measure on and requests to run on."""

    measured: list[Request]
    held_out: list[Request]


@dataclass(frozen=True)
class Arm:
    name: str
    shape: TreeShape


@dataclass(frozen=True)
class Ran:
    """One tree: expected tokens by level and by rank alone, counts by request."""

    arm: Arm
    by_level: float
    by_rank: float
    tokens: np.ndarray
    steps: np.ndarray

    @property
    def realised(self) -> float:
        return float(self.tokens.sum() / self.steps.sum())


@dataclass(frozen=True)
class Section:
    pair: str
    temperature: float
    trials: AcceptanceTrials
    sizes: dict[int, list[Ran]]


def halves(engine: Engine, prompts: int, temperature: float, tokens: int) -> Halves:
    """The first `prompts` of every domain to measure on, the next ones to run on."""
    sampling = SamplingParams(temperature=temperature, max_new_tokens=tokens, seed=1)
    rows = prompt_rows(2 * prompts)

    def requests(first: int) -> list[Request]:
        chosen = [row for domain in rows.values() for row in domain[first : first + prompts]]
        return [Request(row["id"], engine.encode(_prompt(row)), sampling, stream_of(row["id"])) for row in chosen]

    return Halves(requests(0), requests(prompts))


def _prompt(row) -> Prompt:
    return Prompt(tuple(row.get("messages", ())), tuple(row.get("tools", ())), row.get("prompt"))


def arms_of(size: int, by_level: Rates, by_rank: Rates) -> list[Arm]:
    """The planned trees, the chain and the k-ary trees, all of `size` nodes."""
    return [
        Arm("sequoia, rates by level", best_shape(by_level, size, DEEPEST).shape),
        Arm("sequoia, one vector", best_shape(by_rank, size, DEEPEST).shape),
        Arm("chain", chain_shape(size)),
        *(Arm(f"{k}-ary tree", k_ary_shape(k, size)) for k in range(2, WIDTH + 1)),
    ]


def measure(pair: str, temperature: float, prompts: int, tokens: int, sizes: Sequence[int]) -> Section:
    target, draft = PAIRS[pair]
    backend = open_models({"target": ModelSource(target, numerics="fast"), "draft": ModelSource(draft)})
    drafting = drafting_with(backend, rows=4)
    requests = halves(drafting(None), prompts, temperature, tokens)
    trials = measure_trials(drafting, requests.measured, WIDTH, LEVELS)
    return Section(pair, temperature, trials, {size: list(_run(drafting, requests, trials, size)) for size in sizes})


def _run(drafting: Drafting, requests: Halves, trials: AcceptanceTrials, size: int) -> Iterator[Ran]:
    by_level = rates_by_level(trials.by_level())
    (by_rank,) = rates_by_level([trials.by_rank()])
    for arm in arms_of(size, by_level, by_rank):
        traces = {each.request.id: decode(each.trace) for each in drafting(arm.shape).generate(requests.held_out)}
        ordered = [traces[request.id] for request in requests.held_out]
        yield Ran(
            arm,
            expected_tokens(arm.shape, by_level),
            expected_tokens(arm.shape, by_rank),
            np.array([len(trace.tokens) for trace in ordered]),
            np.array([trace.steps for trace in ordered]),
        )


def difference(own: Ran, other: Ran) -> tuple[float, float, float]:
    """own - other in tokens per target forward: the estimate and a 95 % bootstrap interval over prompts, paired."""
    chosen = np.random.default_rng(0).integers(len(own.steps), size=(RESAMPLES, len(own.steps)))
    values = [each.tokens[chosen].sum(axis=1) / each.steps[chosen].sum(axis=1) for each in (own, other)]
    low, high = np.quantile(values[0] - values[1], [0.025, 0.975])
    return own.realised - other.realised, float(low), float(high)


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, help="The page to write.")
@click.option("--prompts", type=click.IntRange(min=2), default=6, show_default=True, help="Per domain and half.")
@click.option("--tokens", type=click.IntRange(min=4), default=48, show_default=True, help="Most new tokens.")
@click.option("--pair", "pairs", multiple=True, type=click.Choice(tuple(PAIRS)), default=("small",))
@click.option("--size", "sizes", multiple=True, type=click.IntRange(min=1), default=SIZES)
def main(out: Path, prompts: int, tokens: int, pairs: Sequence[str], sizes: Sequence[int]) -> None:
    """Measure, and write the last section of the page."""
    torch.set_num_threads(1)
    sections = [measure(pair, each, prompts, tokens, sizes) for pair in pairs for each in TEMPERATURES]
    kept = out.read_text(encoding="utf-8").partition(BEGIN)[0] if out.exists() else ""
    out.write_text(f"{kept}{BEGIN}{measured(sections, prompts, tokens)}", encoding="utf-8")
    click.echo(out.read_text(encoding="utf-8"))


def measured(sections: Sequence[Section], prompts: int, tokens: int) -> str:
    lines = [INTRODUCTION.format(prompts=prompts, tokens=tokens, width=WIDTH, levels=LEVELS, deepest=DEEPEST)]
    for each in sections:
        lines += [f"### {each.pair.capitalize()} pair, temperature {each.temperature:g}", "", *_rates(each.trials), ""]
        for size, ran in each.sizes.items():
            lines += [f"#### {size} nodes", "", HEAD, RULE, *(_row(one, ran[0]) for one in ran), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rates(trials: AcceptanceTrials) -> list[str]:
    levels = trials.by_level()
    counts = trials.tried.sum(axis=0)
    text = [f"| {level} | {counts[level - 1]:.0f} | {_estimates(rates)} |" for level, rates in enumerate(levels, 1)]
    option = rates_text(rates_by_level(levels))
    table = ["| level | trials | child 1 to 4 accepted, with standard error |", "|---|---|---|", *text]
    return [*table, f"| all | {counts.sum():.0f} | {_estimates(trials.by_rank())} |", "", f'`rates: "{option}"`']


def _estimates(rates: Sequence[Estimate]) -> str:
    return ", ".join(f"{each.rate:.3f} ({each.error:.3f})" for each in rates)


def _row(ran: Ran, planned: Ran) -> str:
    gap = "-"
    if ran is not planned:
        middle, low, high = difference(planned, ran)
        gap = f"{middle:+.3f} ({low:+.3f} to {high:+.3f})"
    expected = f"{ran.by_level:.3f} | {ran.by_rank:.3f}"
    return f"| {ran.arm.name} | {ran.arm.shape.depth} | {expected} | {ran.realised:.3f} | {gap} |"


INTRODUCTION = """\
Generated by `python -m tests.bench.sequoia`; do not edit this section. Acceptance is measured on {prompts} prompts
of each of six domains, in steps with a complete tree of {levels} levels of {width} children; the trees then run on
{prompts} other prompts of each domain, with the same seeds, at most {tokens} new tokens, `tree` rule. Trees of a table
have the same number of nodes; planned ones have at most {deepest} levels.

*Expected* is what the measured acceptance promises, by level or with one vector for all levels, which is Sequoia's
assumption. *Realised* is tokens per target forward on the other prompts; the ends of answers, where trees are cut, are
in it. *Ahead by* is how much the tree planned by level realised above the row's, with a 95 % interval over prompts,
paired. Errors of rates treat prompts as the unit.
"""
BEGIN = "## Planned trees, measured\n\n"
HEAD = "| tree | levels | expected, by level | expected, one vector | realised | ahead by |"
RULE = "|---|---|---|---|---|---|"


if __name__ == "__main__":
    main()
