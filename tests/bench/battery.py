"""`python -m tests.bench battery`: what the checks cost by tokens: seconds, peak memory, and whether both are linear.

Evidence comes from the simulator (rejection of drawn chains), is written to a
folder once and read from there, as from a store. Each size is judged in a
process of its own, so that its peak of memory is its own. No time is asserted.
A vocabulary too large for a row per token has rows of a few contexts, each with
some likely tokens over a long tail.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from audit.checks import load
from audit.checks.interface import evaluate
from audit.checks.standard import FULL
from audit.evidence.records import ArmKind, ArmRecord, Evidence, LazyRequests, Level, RequestRecord
from engine.core.types import RecordLevel
from engine.record.effective import Effective
from engine.record.late import late
from engine.record.trace import TraceHeader, decode, encode
from tests.audit.checks.simulator import SAMPLED, Decoder, Laws, Setup, World, world

LENGTH = 512
"""Tokens of a request."""
SHARES = (0.25, 0.5, 1.0)
LEVELS = {RecordLevel.TOPK: Level.L3, RecordLevel.FULL: Level.L4}


@dataclass(frozen=True)
class Workload:
    """Which evidence."""

    folder: str
    vocabulary: int
    level: RecordLevel
    contexts: int | None = None
    """How many rows a wide vocabulary has; None for a row after each token."""

    def path(self, index: int) -> Path:
        return Path(self.folder) / f"{self.name}-{index}.trace"

    @property
    def name(self) -> str:
        """What its files are called after."""
        few = "" if self.contexts is None else f"-{self.contexts}"
        return f"{self.level}-{self.vocabulary}{few}"


@dataclass(frozen=True)
class Cost:
    """One check at one size."""

    check: str
    verdict: str
    seconds: float
    busy: float
    """Processor time, which other work on the machine does not lengthen."""
    summary: str


@dataclass(frozen=True)
class Size:
    """All checks at one size. `peak_mib` is that of the process, `idle_mib` what it had before it read a trace."""

    tokens: int
    seconds: float
    idle_mib: float
    peak_mib: float
    costs: tuple[Cost, ...]


class Folded:
    """[V, V] rows that repeat: token t has that of context t modulo the number of contexts."""

    def __init__(self, rows: NDArray[np.floating[Any]]) -> None:
        self._rows = rows
        self.shape = (rows.shape[1], rows.shape[1])

    def __getitem__(self, token: int) -> NDArray[np.floating[Any]]:
        """The row after a token."""
        return np.asarray(self._rows[token % len(self._rows)])


@dataclass(frozen=True)
class Source:
    """Where tokens come from."""

    world: World
    laws: Laws


def source(workload: Workload, setup: Setup) -> Source:
    """Rows after every token, or of a few contexts."""
    if workload.contexts is None:
        made = world(1, vocabulary=workload.vocabulary, sharpness=2.5)
        return Source(made, Laws.of(made, setup.sampling))
    few = peaked(workload.contexts, workload.vocabulary)
    laws = Laws.of(few, setup.sampling)
    return Source(World(Folded(few.target), Folded(few.draft)), Laws(Folded(laws.p), Folded(laws.q)))


def peaked(contexts: int, vocabulary: int) -> World:
    """[contexts, V] logits of target and draft: sixty likely tokens over a long tail."""
    rng = np.random.default_rng(11)
    target = rng.normal(0.0, 1.0, (contexts, vocabulary))
    for row in target:
        row[rng.choice(vocabulary, 60, replace=False)] += rng.normal(11.0, 1.5, 60)
    draft = target + np.where(target > 6.0, rng.normal(0.0, 1.0, target.shape), 0.0)
    return World(target.astype(np.float32), draft.astype(np.float32))


def write(workload: Workload, indices: list[int]) -> None:
    """Traces that are not there yet."""
    missing = [index for index in indices if not workload.path(index).exists()]
    if not missing:
        return
    setup = Setup(level=workload.level, sampling=replace(SAMPLED, max_new_tokens=LENGTH))
    made = source(workload, setup)
    for index in missing:
        workload.path(index).write_bytes(encode(Decoder(made.world, setup, f"case-{index:06d}", made.laws).run()))


@dataclass(frozen=True)
class _Kept:
    header: TraceHeader
    tokens: tuple[int, ...]


def evidence(workload: Workload, requests: int) -> Evidence:
    """An arm whose traces are read from their files when asked for."""
    traces = (decode(workload.path(index).read_bytes()) for index in range(requests))
    kept = [_Kept(trace.header, trace.tokens) for trace in traces]

    def read(index: int) -> RequestRecord:
        header, tokens = kept[index].header, kept[index].tokens
        trace = late(header, workload.path(index).read_bytes)
        name = header.request
        return RequestRecord(name, name, 0, "chat", trace, tokens, "", header.finish_reason, 1, intact=True)

    lazy = LazyRequests(requests, read)
    return Evidence(ArmRecord("candidate", ArmKind.CANDIDATE, LEVELS[workload.level], Effective(gamma=4), lazy))


def peak() -> float:
    """MiB of this process so far; the resource module would count what its parent had."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure(workload: Workload, chosen: tuple[str, ...], requests: int) -> Size:
    """Run the checks, one after the other."""
    checks = {name: load(name) for name in chosen}
    idle, given, costs = peak(), evidence(workload, requests), []
    for name, check in checks.items():
        began, busy = time.perf_counter(), time.process_time()
        result = evaluate(check, given, {})
        spent = time.perf_counter() - began
        costs.append(Cost(name, result.verdict.value, spent, time.process_time() - busy, result.summary))
    return Size(requests * LENGTH, sum(each.seconds for each in costs), idle, peak(), tuple(costs))


def rendered(sizes: list[Size]) -> Iterator[str]:
    """One line per check, then totals."""
    yield f"{'check':<20} {'verdict':<13}" + "".join(f"{size.tokens:>12,}" for size in sizes) + "   us per token"
    for row in zip(*(size.costs for size in sizes), strict=True):
        rates = " ".join(f"{1e6 * each.seconds / size.tokens:8.1f}" for each, size in zip(row, sizes, strict=True))
        yield (
            f"{row[-1].check:<20} {row[-1].verdict:<13}"
            + "".join(f"{each.seconds:11.1f}s" for each in row)
            + f"  {rates}"
        )
    yield f"{'all':<34}" + "".join(f"{size.seconds:11.1f}s" for size in sizes)
    busy = [sum(each.busy for each in size.costs) for size in sizes]
    yield f"{'all, processor time':<34}" + "".join(f"{seconds:11.1f}s" for seconds in busy)
    yield f"{'peak memory':<34}" + "".join(f"{size.peak_mib:8.0f}MiB" for size in sizes)
    yield f"{'before the first trace':<34}" + "".join(f"{size.idle_mib:8.0f}MiB" for size in sizes)


@click.command()
@click.option("--tokens", type=click.IntRange(min=LENGTH), default=1_000_000, show_default=True)
@click.option("--vocabulary", type=click.IntRange(min=2), default=2048, show_default=True)
@click.option("--level", type=click.Choice([each.value for each in LEVELS]), default="topk", show_default=True)
@click.option("--contexts", type=click.IntRange(min=1), help="Rows of a vocabulary too large for one per token.")
@click.option("--checks", "chosen", help="By commas; default: the standard ones.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True, help="To make the evidence.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/bench/battery"), show_default=True)
def main(
    tokens: int, vocabulary: int, level: str, contexts: int | None, chosen: str | None, processes: int, folder: Path
) -> None:
    """Time the standard checks on simulated evidence of a quarter, half and all of TOKENS."""
    folder.mkdir(parents=True, exist_ok=True)
    workload = Workload(str(folder), vocabulary, RecordLevel(level), contexts)
    most, began = max(1, tokens // LENGTH), time.perf_counter()
    fresh = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        list(pool.map(partial(write, workload), [list(range(most))[start::processes] for start in range(processes)]))
    click.echo(f"evidence made in {time.perf_counter() - began:.0f} s (not counted)")
    selected = tuple(chosen.split(",")) if chosen else FULL
    sizes = []
    for share in SHARES:
        with ProcessPoolExecutor(1, mp_context=fresh) as pool:
            sizes.append(pool.submit(measure, workload, selected, max(1, int(most * share))).result())
    for line in rendered(sizes):
        click.echo(line)
    for cost in sizes[-1].costs:
        click.echo(f"{cost.check}: {cost.summary}")
    out = folder / f"{workload.name}.json"
    out.write_text(json.dumps([asdict(size) for size in sizes], indent=1))
