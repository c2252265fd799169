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
import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord
from audit.evidence.verdicts import Verdict
from audit.stats.binomial import clopper_pearson
from audit.stats.multiplicity import holm
from audit.stats.two_sample import TwoSampleData, bigram_test, first_token_test, hamming_test, pooled
from engine import faults
from engine.core.types import Protocol, SamplingParams
from engine.faults.interface import Scenario
from tests.bench.growing import Growing
from tests.bench.two_sample import PROMPTS, Peer, load_peer
from tests.support.served import served_evidence

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
BATTERY, TOKENS, TEXT, THEIRS = "battery", "token_law", "two-sample", "model-equality-testing"
COLUMNS = {
    BATTERY: "engine evidence (best check)",
    TOKENS: "tokens and the target's files: `token_law`",
    TEXT: "text: our two-sample tests",
    THEIRS: "text: theirs",
}
ALARMS = {
    BATTERY: "engine evidence, best check",
    TOKENS: "tokens and the target's files",
    TEXT: "text: ours",
    THEIRS: "text: theirs",
}
TOKEN_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
CLEAN_TOKENS = 256
"""Tokens of each of the many clean arms that `token_law` judges."""


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


def endpoint(fault: str | None, seed: int) -> Growing:
    """A candidate with the target's rows on its tokens; every request has a prompt of its own."""
    scenario = replace(faults.load(fault).scenario if fault else Scenario(), protocol=Protocol.CHAIN, sampling=SAMPLING)
    return Growing(scenario, fault, seed, (ArmKind.ANCHOR,))


def seen_through_an_endpoint(arm: Growing, tokens: int) -> bool:
    """The check at its default level, on the tokens of an arm."""
    return evaluate(checks.load(TOKENS), served_evidence(arm.grown(tokens)), {}).verdict is Verdict.FAULT


def token_law(fault: str | None, seeds: int, most: int) -> Found:
    """Sizes up to twice `most` until the check has the power, or to `most` without a fault."""
    arms = [endpoint(fault, seed) for seed in range(seeds)]
    hits: dict[int, tuple[int, int]] = {}
    for size in (size for size in TOKEN_SIZES if size <= (2 * most if fault else most)):
        tried = arms if size <= MANY_SEEDS_UP_TO else arms[: max(1, len(arms) // 2)]
        hits[size] = (sum(seen_through_an_endpoint(arm, size) for arm in tried), len(tried))
        if fault and hits[size][0] >= math.ceil(POWER * len(tried)):
            break
    return Found(hits)


def clean_alarms(arms: int) -> str:
    """How many clean arms the check calls a fault, in a sentence; their seeds begin where those of the table end."""
    alarms = sum(seen_through_an_endpoint(endpoint(None, 1000 + seed), CLEAN_TOKENS) for seed in range(arms))
    interval, level = clopper_pearson(alarms, arms), checks.load(TOKENS).defaults["alpha"]
    share = f"`token_law` calls {alarms} of {arms} clean arms of {CLEAN_TOKENS} tokens a fault: {alarms / arms:.4f}"
    return f"{share}, 99 % bounds {interval.low:.4f} and {interval.high:.4f}; nominal {level}."


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
    found = {
        BATTERY: battery(arms, record),
        TOKENS: token_law(fault, setting.seeds, setting.most),
        TEXT: text(arms, sizes, seen_by_ours, fault is None),
    }
    if peer:

        def seen(sample: TwoSampleData, seed: int) -> bool:
            del seed
            return seen_by_theirs(peer, sample, setting.permutations)

        found[THEIRS] = text(arms, sizes, seen, fault is None)
    return found


HEAD = """# Comparison with model-equality-testing

[model-equality-testing](https://github.com/i-gao/model-equality-testing) (Gao, Liang and Guestrin 2025) asks whether an
interface that gives text serves the model that it names. This project asks whether speculative decoding keeps the law
of its target, from the engine's own records where it has them. The two meet where only tokens or text are there.

Written by `python -m tests.bench.two_sample_peer --peer FOLDER`; with `--keep docs/comparison.md` it measures the
column of `token_law` alone, as was done last. Tests repeat a small sample of that column.

## Tokens needed
"""

REMARKS = """## What to make of it

* The battery sees p, q, the decisions and the random numbers of every token, and the target's own rows on the same
  text. That is the whole difference. Of an engine that writes nothing down, tokens are left.
* [token_law](checks/token_law.md) sees no more of the engine than the text columns do. It knows p at every place from
  the target's own files, so no second arm adds its noise, and its directions were chosen before. Where those files are
  elsewhere, the text columns are all that is left.
* Text alone needs a second arm of equal size and several responses per prompt; the others need neither.
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


Cells = dict[str, dict[str, str]]
"""By fault, or by size for the arm without one, and by method: what the page says."""


def cells_of(rows: Mapping[str, Mapping[str, Found]]) -> Cells:
    """What was measured, in words."""
    return {fault: {method: found.told() for method, found in methods.items()} for fault, methods in rows.items()}


def alarm_cells(clean: Mapping[str, Found]) -> Cells:
    """The arm without a fault: seeds called a fault, by size."""
    cells: Cells = {}
    for method, found in clean.items():
        for size, (hits, seeds) in found.hits.items():
            cells.setdefault(str(size), {})[method] = f"{hits} of {seeds}"
    return cells


def kept(page: str) -> Cells:
    """The table of faults as it stands on a page."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(("| fault |", "| `"))]
    methods = {title: method for method, title in COLUMNS.items()}
    titles = lines[0][1:]
    return {
        line[0].strip("`"): {methods[title]: cell for title, cell in zip(titles, line[1:], strict=True)}
        for line in lines[1:]
    }


def kept_alarms(page: str) -> Cells:
    """The table of false alarms as it stands on a page."""
    begin = page.index("| no fault |")
    lines = [line.strip("| ").split(" | ") for line in page[begin : page.index("\n\n", begin)].splitlines()]
    methods = {title: method for method, title in ALARMS.items()}
    cells: Cells = {size: {} for size in lines[0][1:]}
    for line in lines[2:]:
        for size, cell in zip(lines[0][1:], line[1:], strict=True):
            cells[size] |= {} if cell == "-" else {methods[line[0]]: cell}
    return cells


def merged(old: Cells, new: Cells) -> Cells:
    """`new` over `old`."""
    return {key: old.get(key, {}) | new.get(key, {}) for key in (*old, *(key for key in new if key not in old))}


def table(cells: Cells) -> list[str]:
    """One line per fault."""
    shown = [f"| fault | {' | '.join(COLUMNS.values())} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for fault, found in cells.items():
        shown.append(f"| `{fault}` | {' | '.join(found.get(method, 'not run') for method in COLUMNS)} |")
    return shown


def alarms(cells: Cells) -> list[str]:
    """One line per method."""
    sizes = sorted(cells, key=int)
    lines = [f"| no fault | {' | '.join(sizes)} |", "|---" * (1 + len(sizes)) + "|"]
    for method, title in ALARMS.items():
        lines.append(f"| {title} | {' | '.join(cells[size].get(method, '-') for size in sizes)} |")
    return lines


def measured_when(faults: Sequence[str], began: datetime, minutes: float, loads: Sequence[float]) -> str:
    """The sentence on the last measurement of `token_law`: its date, rows, processor time and the machine's load."""
    named = "all rows" if set(faults) == set(FAULTS) else f"the rows of {', '.join(f'`{each}`' for each in faults)}"
    load = f"{min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores"
    return (
        f"`token_law` was last measured on {began:%Y-%m-%d}: {named}, and both tables of clean arms; "
        f"{minutes:.0f} minutes of one core, at a load of {load}."
    )


def page(cells: Cells, clean: Cells, setting: Setting, version: str, many: str) -> str:
    """docs/comparison.md; `many` are the sentences on the clean arms and on the last measurement."""
    how = (
        f"Tokens per arm to call the fault one in at least {POWER} of the seeds at level {ALPHA}: real engine over "
        f"scripted models, rejection sampling at temperature 1, draft length 4, {PROMPTS} prompts, responses of "
        f"{SAMPLING.max_new_tokens} tokens, {setting.seeds} seeds (pairs of models) up to {MANY_SEEDS_UP_TO} tokens "
        "and half as many above, "
        f"sizes in powers of two from {RECORD_SIZES[0]} (`token_law`: {TOKEN_SIZES[0]}, text: {TEXT_SIZES[0]}) to "
        f"{setting.most} (`token_law`: {2 * setting.most}); "
        "`> N (k of n)` is the share seen at the largest size. Engine evidence is the battery of default checks, whose "
        f"error over all of them is {ALPHA}; the first check that saw most is named. `token_law` sees what an endpoint "
        "shows, tokens alone, beside a reference pass of the target's files; its level is 0.005, it needs no second "
        "arm, and every response has a prompt of its own. Our tests are MMD with the "
        "Hamming kernel, bigrams and first tokens, Holm-adjusted, 999 permutations. Theirs is "
        f'`run_two_sample_test(..., stat_type="mmd_hamming")` of version {version} with {setting.permutations} '
        "permutations."
    )
    told = wrapped(how)
    clean_part = ("## False alarms", "", "Seeds called a fault, by tokens per arm.", "", *alarms(clean), "")
    return "\n".join((HEAD, told, "", *table(cells), "", *clean_part, wrapped(many), "", REMARKS))


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False))


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
@click.option("--clean", type=click.IntRange(min=1), default=1000, show_default=True, help="Clean arms of token_law.")
@click.option("--keep", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Measure token_law alone.")
def main(
    folder: Path | None,
    seeds: int,
    most: int,
    permutations: int,
    only: Sequence[str],
    out: Path,
    numbers: Path | None,
    clean: int,
    keep: Path | None,
) -> None:
    """Measure and write the page. With `--keep PAGE` all other columns are those of the page."""
    peer, setting = provided(folder), Setting(seeds, most, permutations)
    began, loads = datetime.now(UTC), [os.getloadavg()[0]]
    if peer is None and keep is None:
        click.echo("model-equality-testing is not installed: its column stays empty; see --peer")
    plain = [] if keep else [Growing(PLAIN, None, seed, prompts=PROMPTS) for seed in range(seeds)]

    def measured(fault: str | None) -> dict[str, Found]:
        return {TOKENS: token_law(fault, seeds, most)} if keep else compare(fault, plain, setting, peer)

    rows: dict[str, dict[str, Found]] = {}
    for fault in only or FAULTS:
        rows[fault] = measured(fault)
        click.echo(f"{fault}: {', '.join(f'{name} {found.told()}' for name, found in rows[fault].items())}")
    without = measured(None)
    old = keep.read_text(encoding="utf-8") if keep else ""
    false = merged(kept_alarms(old) if keep else {}, alarm_cells(without))
    click.echo("\n".join(alarms(false)))
    version = importlib.metadata.version("model-equality-testing") if peer else "0.0.2" if keep else "-"
    many = clean_alarms(clean)
    loads.append(os.getloadavg()[0])
    many = f"{many} {measured_when(only or FAULTS, began, time.process_time() / 60, loads)}"
    click.echo(many)
    shown = page(merged(kept(old) if keep else {}, cells_of(rows)), false, setting, version, many)
    out.write_text(shown, encoding="utf-8")
    numbers = numbers or Path("build") / "bench" / "two_sample_peer.json"
    numbers.parent.mkdir(parents=True, exist_ok=True)
    told = {name: documented(found) for name, found in (rows | {"no fault": without}).items()}
    numbers.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
