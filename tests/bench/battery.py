"""`python -m tests.bench battery`: what the checks cost by tokens: seconds, peak memory, and whether both are linear.

Each size is judged in a process of its own, so that its peak of memory is its own: by this process alone, and with the
helpers that `audit run` starts. Then each check is run alone, at the smallest of the sizes that is not below `ALONE`.
No time is asserted. With `--picture FOLDER` the numbers and their picture are written there, beside those of other
sizes that are there already.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import click

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.checks.base.shared_reading import AskedCheck, evaluate_together
from audit.checks.battery import CLAIMS, OURS
from audit.checks.law import check as law
from audit.runs.reading_helpers import MANY_TOKENS, ReadingHelpers, processors
from engine.core.types import RecordLevel
from tests.bench.battery_evidence import LENGTH, LEVELS, Workload, evidence, write
from tests.bench.battery_picture import drawn

ALONE = MANY_TOKENS
"""Tokens from which on a check's own cost no longer depends on what it costs to begin."""


@dataclass(frozen=True)
class Cost:
    """One check alone."""

    check: str
    verdict: str
    seconds: float
    busy: float
    """Processor time, which other work on the machine does not lengthen."""
    summary: str


@dataclass(frozen=True)
class Size:
    """All checks over one reading of requests of `length` tokens, by `processes` processes.

    `busy` counts all of them, `peak_mib` that of the process that judges, `helper_mib` that of the largest helper, and
    `idle_mib` what the former had before it read a trace.
    """

    tokens: int
    length: int
    distinct: int
    processes: int
    seconds: float
    busy: float
    idle_mib: float
    peak_mib: float
    helper_mib: float
    verdicts: dict[str, str]


def peak() -> float:
    """MiB of this process so far; the resource module would count what its parent had."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def alone(workload: Workload, chosen: tuple[str, ...], requests: int) -> tuple[Cost, ...]:
    """Run the checks, one after the other."""
    given, costs = evidence(workload, requests, requests), []
    for name in chosen:
        began, busy = time.perf_counter(), time.process_time()
        result = evaluate(load(name), given, {})
        spent = time.perf_counter() - began
        costs.append(Cost(name, result.verdict.value, spent, time.process_time() - busy, result.summary))
    return tuple(costs)


def together(workload: Workload, chosen: tuple[str, ...], requests: int, distinct: int, helpers: int) -> Size:
    """Run the checks over one reading."""
    # repeated requests draw the same random numbers, which the law test would refuse
    law.shared_numbers = law.shared_numbers if requests <= distinct else lambda _arm: None
    given = evidence(workload, requests, distinct)
    asked = {name: AskedCheck(load(name), {}) for name in chosen}
    idle, began, busy = peak(), time.perf_counter(), time.process_time()
    with ReadingHelpers(helpers, least=1) as reading:
        results = dict(evaluate_together(asked, given, reading.read))
    spent, children = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = time.process_time() - busy + children.ru_utime + children.ru_stime
    verdicts = {name: result.verdict.value for name, result in results.items()}
    length, helper = workload.length, children.ru_maxrss / 1024
    tokens, made = requests * length, min(requests, distinct) * length
    return Size(tokens, length, made, 1 + helpers, spent, busy, idle, peak(), helper, verdicts)


def of_checks(costs: tuple[Cost, ...], tokens: int) -> Iterator[str]:
    """The checks alone."""
    yield f"{'check':<20} {'verdict':<13} seconds     busy   us per token, of {tokens:,}"
    for each in costs:
        rate = 1e6 * each.busy / tokens
        yield f"{each.check:<20} {each.verdict:<13} {each.seconds:7.1f}  {each.busy:7.1f}  {rate:8.1f}   {each.summary}"
    yield f"{'all':<34} {sum(each.seconds for each in costs):7.1f}  {sum(each.busy for each in costs):7.1f}"


HEAD = f"{'one reading, tokens':<20} processes  seconds     busy   us per token   peak MiB   helper MiB   idle MiB"


def of_size(size: Size) -> str:
    """All checks over one reading."""
    return (
        f"{size.tokens:>20,} {size.processes:9}  {size.seconds:7.1f}  {size.busy:7.1f}   "
        f"{1e6 * size.busy / size.tokens:12.1f}   {size.peak_mib:8.0f}   {size.helper_mib:10.0f}   {size.idle_mib:8.0f}"
    )


def kept(sizes: list[Size], folder: Path) -> None:
    """Write the sizes and their picture; others that were measured before stay."""
    path = folder / "battery.json"
    before = json.loads(path.read_text()) if path.exists() else []
    measured = {(each["length"], each["tokens"], each["processes"]): each for each in (*before, *map(asdict, sizes))}
    found = [measured[key] for key in sorted(measured)]
    path.write_text(json.dumps(found, indent=1) + "\n")
    (folder / "battery.svg").write_text(drawn(found))


@click.command()
@click.option("--tokens", default="10000,100000,1000000", show_default=True, help="Sizes, by commas.")
@click.option("--length", type=click.IntRange(min=1), default=LENGTH, show_default=True, help="Tokens of a request.")
@click.option("--distinct", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Tokens made.")
@click.option("--vocabulary", type=click.IntRange(min=2), default=2048, show_default=True)
@click.option("--level", type=click.Choice([each.value for each in LEVELS]), default="topk", show_default=True)
@click.option("--contexts", type=click.IntRange(min=1), help="Rows of a vocabulary too large for one per token.")
@click.option("--checks", "chosen", help="By commas; default: the standard ones.")
@click.option("--processes", type=click.IntRange(min=1), default=processors(), help="Default: the machine's.")
@click.option("--single", type=int, default=1_100_000, show_default=True, help="Most tokens that one process judges.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/bench/battery"), show_default=True)
@click.option("--picture", type=click.Path(path_type=Path), help="A folder for battery.json and battery.svg.")
def main(
    tokens: str,
    length: int,
    distinct: int,
    vocabulary: int,
    level: str,
    contexts: int | None,
    chosen: str | None,
    processes: int,
    single: int,
    folder: Path,
    picture: Path | None,
) -> None:
    """Time the standard checks on simulated evidence of some sizes."""
    if distinct < length:
        raise click.UsageError(f"--distinct {distinct} is less than one request of {length} tokens")
    folder.mkdir(parents=True, exist_ok=True)
    workload = Workload(str(folder), vocabulary, RecordLevel(level), contexts, length)
    counts = sorted({max(1, int(each) // length) for each in tokens.split(",")})
    most, began = min(counts[-1], distinct // length), time.perf_counter()
    fresh = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        list(pool.map(partial(write, workload), [list(range(most))[start::processes] for start in range(processes)]))
    click.echo(f"evidence made in {time.perf_counter() - began:.0f} s (not counted)")
    selected = tuple(chosen.split(",")) if chosen else (*CLAIMS, *OURS)
    sizes = []
    click.echo(HEAD)
    for count in counts:
        for helpers in sorted({0, processes - 1} if count * length <= single else {processes - 1}):
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                sizes.append(pool.submit(together, workload, selected, count, most, helpers).result())
            click.echo(of_size(sizes[-1]))
    if picture is not None:
        kept(sizes, picture)
    own = min((count for count in counts if count * length >= ALONE), default=counts[-1])
    if own * length <= single:
        with ProcessPoolExecutor(1, mp_context=fresh) as pool:
            costs = pool.submit(alone, workload, selected, min(own, most)).result()
        for line in of_checks(costs, min(own, most) * length):
            click.echo(line)
