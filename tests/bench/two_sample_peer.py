"""`python -m tests.bench.two_sample_peer`: tokens needed to see ten faults, ours beside model-equality-testing.

All methods get the same samples: the real engine over scripted models, four prompts, responses of 32 tokens, and as
many responses of the target alone. The page docs/comparison.md is written from what was measured.

The peer is used as it is and needed by nothing else. To provide it, unpack the package `model-equality-testing` and
what it imports (torch, matplotlib) into a folder and name that folder by `--peer`: it is looked at after everything
that is installed. Without it its column stays empty.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from audit import checks
from audit.checks.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord
from audit.evidence.verdicts import Verdict
from audit.stats.multiplicity import holm
from audit.stats.two_sample import TwoSampleData, bigram_test, first_token_test, hamming_test, pooled
from engine import faults
from engine.core.types import Protocol, SamplingParams
from engine.faults.interface import Scenario
from tests.bench.growing import Growing
from tests.bench.two_sample import PROMPTS, Peer, load_peer

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
FAULTS = (
    "sqrt_acceptance",
    "resample_from_p",
    "argmax_draft_soft_q",
    "stale_q",
    "first_draft_unverified",
    "accepts_everything",
    "greedy_recovered_token",
    "lenient_10_percent",
    "kv_not_rolled_back",
    "target_rows_shifted",
)
SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=32)
PLAIN = Scenario(Protocol.GUMBEL, None, 0, SAMPLING, drafts=0)
RECORD_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
TEXT_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16_384)
MANY_SEEDS_UP_TO = 1024
ALPHA, POWER = 0.01, 0.9
OURS = (hamming_test, bigram_test, first_token_test)
BATTERY, TEXT, THEIRS = "battery", "two-sample", "model-equality-testing"


@dataclass(frozen=True)
class Found:
    """How one method did on one fault: seeds that it called a fault, by size; the best check of a battery."""

    hits: Mapping[int, tuple[int, int]]
    best: str = ""

    @property
    def tokens(self) -> int | None:
        """The first size with the power, if the last has it."""
        first = None
        for size, (hits, seeds) in self.hits.items():
            reached = hits >= math.ceil(POWER * seeds)
            first = (first or size) if reached else None
        return first

    def told(self) -> str:
        """Tokens, or the share at the largest size."""
        if self.tokens is not None:
            return f"{self.tokens}{f' ({self.best})' if self.best else ''}"
        size, (hits, seeds) = list(self.hits.items())[-1]
        return f"> {size} ({hits} of {seeds})"


@dataclass(frozen=True)
class Arms:
    """A seed's candidate twice, with its anchor and without, and the target alone over the same models."""

    recorded: Growing
    plain_text: Growing
    target: Growing


def arms_of(fault: str | None, seed: int, target: Growing) -> Arms:
    scenario = replace(faults.load(fault).scenario if fault else Scenario(), protocol=Protocol.CHAIN, sampling=SAMPLING)
    return Arms(
        Growing(scenario, fault, seed, (ArmKind.ANCHOR,), PROMPTS), Growing(scenario, fault, seed, (), PROMPTS), target
    )


def part(arm: ArmRecord, count: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Responses and prompts' numbers of the first `count` requests as they were asked."""
    order = sorted(arm.requests, key=lambda each: (each.sample, each.case_id))[:count]
    return [each.tokens for each in order], [int(each.case_id[1:]) for each in order]


def sample_of(arms: Arms, tokens: int) -> TwoSampleData:
    """`tokens` tokens of each arm. The target's random numbers are of a purpose that the candidate has no use for."""
    count = tokens // SAMPLING.max_new_tokens
    target, candidate = (each.grown(tokens).candidate for each in (arms.target, arms.plain_text))
    return pooled(*part(target, count), *part(candidate, count))


def seen_by_ours(sample: TwoSampleData, seed: int) -> bool:
    """Holm over three statistics."""
    p_values = [test(sample, np.random.default_rng(seed)).p for test in OURS]
    return min(holm(p_values)) <= ALPHA


def seen_by_theirs(peer: Peer, sample: TwoSampleData, permutations: int) -> bool:
    return peer(sample, "mmd_hamming", permutations)[0] <= ALPHA


def battery(arms: Sequence[Arms], sizes: Sequence[int]) -> Found:
    """Sizes until a check has the power; the counts are the best check's."""
    listed = [name for name in checks.names() if checks.load(name).claim != "cost"]
    hits: dict[int, tuple[int, int]] = {}
    best = ""
    for size in sizes:
        counts = dict.fromkeys(listed, 0)
        for each in arms:
            evidence = each.recorded.grown(size)
            for name in listed:
                counts[name] += evaluate(checks.load(name), evidence, {}).verdict is Verdict.FAULT
        best = max(listed, key=lambda name: counts[name])
        hits[size] = (counts[best], len(arms))
        if counts[best] >= math.ceil(POWER * len(arms)):
            break
    return Found(hits, best)


def text(
    arms: Sequence[Arms], sizes: Sequence[int], seen: Callable[[TwoSampleData, int], bool], keep_on: bool
) -> Found:
    """A method that sees text; it stops at the first size with the power unless told to go on."""
    found: dict[int, tuple[int, int]] = {}
    for size in sizes:
        tried = arms if size <= MANY_SEEDS_UP_TO else arms[: max(1, len(arms) // 2)]
        hits = sum(bool(seen(sample_of(each, size), seed)) for seed, each in enumerate(tried))
        found[size] = (hits, len(tried))
        if not keep_on and hits >= math.ceil(POWER * len(tried)):
            break
    return Found(found)


@dataclass(frozen=True)
class Setting:
    """How much is run."""

    seeds: int
    most: int
    permutations: int


def compare(fault: str | None, plain: Sequence[Growing], setting: Setting, peer: Peer | None) -> dict[str, Found]:
    """The methods on one fault, or on the arm without any."""
    arms = [arms_of(fault, seed, each) for seed, each in enumerate(plain)]
    sizes = [size for size in TEXT_SIZES if size <= setting.most]
    record = [size for size in RECORD_SIZES if size <= (setting.most if fault else MANY_SEEDS_UP_TO)]
    found = {BATTERY: battery(arms, record), TEXT: text(arms, sizes, seen_by_ours, fault is None)}
    if peer:

        def seen(sample: TwoSampleData, seed: int) -> bool:
            del seed
            return seen_by_theirs(peer, sample, setting.permutations)

        found[THEIRS] = text(arms, sizes, seen, fault is None)
    return found


HEAD = """# Comparison with model-equality-testing

[model-equality-testing](https://github.com/i-gao/model-equality-testing) (Gao, Liang and Guestrin 2025) asks whether an
interface that gives text serves the model that it names. This project asks whether speculative decoding keeps the law
of its target, from the engine's own records where it has them. The two meet where only text is there.

Written by `python -m tests.bench.two_sample_peer --peer FOLDER`; nothing here is asserted by a test.

## Tokens needed
"""

REMARKS = """## What to make of it

* The battery sees p, q, the decisions and the random numbers of every token, and the target's own rows on the same
  text. That is the whole difference. Of an engine that writes nothing down, the text columns are all that is left.
* Text alone needs a second arm of equal size and several responses per prompt; the battery needs neither.
* The first of our three statistics has their kernel and their estimate; `python -m tests.bench.two_sample` compares the
  two on the same samples. What differs is how the p-value is made.
* Their p is b / B over B permutations, which can be 0: such values cannot go into Fisher's or Holm's methods as they
  are. Ours is (1 + b) / (1 + B).
* Theirs permutes across prompts, ours within each prompt. Across is valid where both arms ask the prompts alike, as
  they do here.
* Theirs is made for another purpose, an interface with many models behind it, where the difference is larger than
  that of a faulty acceptance rule. It imports torch and matplotlib and computes the kernel anew in every permutation,
  which bounds the sizes here. It gives a p-value and a statistic, no interval.
* Scripted models have 32 tokens and a short memory; real texts differ in more places. The ratio between the columns is
  the message, not the numbers.
* The points of a column are nested: larger arms begin with the smaller ones. With twenty seeds a share has an interval
  of some 0.2 to each side.
* No test of text certifies equality ([statistics](statistics.md)).
"""


def table(rows: Mapping[str, Mapping[str, Found]]) -> list[str]:
    """One line per fault."""
    columns = {BATTERY: "engine evidence (best check)", TEXT: "text: our two-sample tests", THEIRS: "text: theirs"}
    shown = [f"| fault | {' | '.join(columns.values())} |", "|---" * (1 + len(columns)) + "|"]
    for fault, found in rows.items():
        cells = [found[each].told() if each in found else "not run" for each in columns]
        shown.append(f"| `{fault}` | {' | '.join(cells)} |")
    return shown


def alarms(clean: Mapping[str, Found]) -> list[str]:
    """The arm without a fault: seeds called a fault, by size."""
    sizes = sorted({size for found in clean.values() for size in found.hits})
    names = {BATTERY: "engine evidence, best check", TEXT: "text: ours", THEIRS: "text: theirs"}
    lines = [f"| no fault | {' | '.join(map(str, sizes))} |", "|---" * (1 + len(sizes)) + "|"]
    for name, found in clean.items():
        cells = [f"{found.hits[each][0]} of {found.hits[each][1]}" if each in found.hits else "-" for each in sizes]
        lines.append(f"| {names[name]} | {' | '.join(cells)} |")
    return lines


def page(rows: Mapping[str, Mapping[str, Found]], clean: Mapping[str, Found], setting: Setting, version: str) -> str:
    """docs/comparison.md."""
    how = (
        f"Tokens per arm to call the fault one in at least {POWER} of the seeds at level {ALPHA}: real engine over "
        f"scripted models, rejection sampling at temperature 1, draft length 4, {PROMPTS} prompts, responses of "
        f"{SAMPLING.max_new_tokens} tokens, {setting.seeds} seeds (pairs of models) up to {MANY_SEEDS_UP_TO} tokens "
        "and half as many above, "
        f"sizes in powers of two from {RECORD_SIZES[0]} (text: {TEXT_SIZES[0]}) to {setting.most}; "
        "`> N (k of n)` is the share seen at the largest size. Engine evidence is the battery of default checks, whose "
        f"error over all of them is {ALPHA}; the first check that saw most is named. Our tests are MMD with the "
        "Hamming kernel, bigrams and first tokens, Holm-adjusted, 999 permutations. Theirs is "
        f'`run_two_sample_test(..., stat_type="mmd_hamming")` of version {version} with {setting.permutations} '
        "permutations."
    )
    told = "\n".join(textwrap.wrap(how, 118, break_long_words=False, break_on_hyphens=False))
    return "\n".join(
        (
            *(HEAD, told, "", *table(rows), ""),
            *("## False alarms", "", "Seeds called a fault, by tokens per arm.", "", *alarms(clean), "", REMARKS),
        )
    )


def provided(folder: Path | None) -> Peer | None:
    """The peer, from what is installed or behind it from a folder."""
    if folder is not None:
        sys.path.append(str(folder))
    return load_peer()


def documented(found: Mapping[str, Found]) -> dict[str, Any]:
    return {name: {"hits": each.hits, "best": each.best, "tokens": each.tokens} for name, each in found.items()}


@click.command()
@click.option("--peer", "folder", type=click.Path(file_okay=False, path_type=Path), help="Where the package lies.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--most", type=click.IntRange(min=256), default=4096, show_default=True, help="Tokens per arm.")
@click.option("--permutations", type=click.IntRange(min=99), default=99, show_default=True, help="Of the peer.")
@click.option("--only", multiple=True, type=click.Choice(FAULTS), help="These faults.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, help="The page to write.")
@click.option("--json", "numbers", type=click.Path(dir_okay=False, path_type=Path), help="Default: build/bench.")
def main(
    folder: Path | None,
    seeds: int,
    most: int,
    permutations: int,
    only: Sequence[str],
    out: Path,
    numbers: Path | None,
) -> None:
    """Measure and write the page."""
    peer, setting = provided(folder), Setting(seeds, most, permutations)
    if peer is None:
        click.echo("model-equality-testing is not installed: its column stays empty; see --peer")
    plain = [Growing(PLAIN, None, seed, prompts=PROMPTS) for seed in range(seeds)]
    rows: dict[str, dict[str, Found]] = {}
    for fault in only or FAULTS:
        rows[fault] = compare(fault, plain, setting, peer)
        click.echo(f"{fault}: {', '.join(f'{name} {found.told()}' for name, found in rows[fault].items())}")
    clean = compare(None, plain, setting, peer)
    click.echo("\n".join(alarms(clean)))
    version = importlib.metadata.version("model-equality-testing") if peer else "-"
    out.write_text(page(rows, clean, setting, version), encoding="utf-8")
    numbers = numbers or Path("build") / "bench" / "two_sample_peer.json"
    numbers.parent.mkdir(parents=True, exist_ok=True)
    told = {name: documented(found) for name, found in (rows | {"no fault": clean}).items()}
    numbers.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
