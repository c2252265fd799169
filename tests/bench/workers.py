"""`python -m tests.bench workers`: how much faster several local workers decode a suite than one, side by side.

Each round decodes the suite with one worker and with N, in turn, by workers that have loaded their models; judging is
not part of it. Processor time says what spreading costs even on a busy machine: the workers' per token, and that of
the coordinating process, which stores what they return. No time is asserted.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch

from audit.api.running import Quiet
from audit.executors.job import ArmPiece, Job, WorkPart, job_of
from audit.executors.local import LocalExecutor, LocalPool
from audit.executors.spread import Spread, decoding_pieces
from audit.runs.prepare import PreparedRun, prepare, require_engines, run_start
from audit.store import Store
from audit.suite.allowances import NOTHING
from audit.suite.loader import load_suite


@dataclass(frozen=True)
class Decoding:
    """One suite decoded by workers: seconds of the clock and of processors, and the content root."""

    workers: int
    start_s: float
    wall_s: float
    workers_cpu_s: float
    busiest_cpu_s: float
    """Of the worker that worked most, which an idle machine would wait for."""
    coordinator_cpu_s: float
    tokens: int
    root: str | None


class Warm(LocalExecutor):
    """The workers of a pool that runs already."""

    def __init__(self, pool: LocalPool) -> None:
        self._pool = pool

    @contextmanager
    def pool(self, job: Job, workers: int) -> Iterator[LocalPool]:
        """The pool, which stays open."""
        yield self._pool


def decoded(prepared: PreparedRun, workers: int, folder: Path) -> Decoding:
    """Decode the suite once."""
    job = job_of(prepared, 1, NOTHING)
    with Store.open(str(folder / "bench.db"), create=True) as store, LocalExecutor().pool(job, workers) as pool:
        name = store.begin_run(run_start(prepared))
        began = time.perf_counter()
        pids = warmed(pool, decoding_pieces(prepared, store, name, workers)[0], workers)
        start = time.perf_counter() - began
        before, own, began = [cpu_seconds(pid) for pid in pids], time.process_time(), time.perf_counter()
        Spread(prepared, job, Warm(pool), workers).fill(store, name, Quiet())
        wall = time.perf_counter() - began
        used = [cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
        coordinator = time.process_time() - own
        tokens = sum(arm.counts.output for arm in store.load_run(name).arms if not arm.kind.reads)
        root = store.content_root(name)
        return Decoding(workers, start, wall, sum(used), max(used), coordinator, tokens, root)


def warmed(pool: LocalPool, piece: ArmPiece, workers: int) -> tuple[int, ...]:
    """Let every worker load its models and decode one request; their process numbers."""
    for number in range(workers):
        pool.submit(WorkPart(number, (ArmPiece(piece.arm, piece.keys[:1]),)))
    pids = pool.processes
    for _ in range(workers):
        pool.wait()
    return pids


def cpu_seconds(pid: int) -> float:
    """Seconds of processors that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@click.command()
@click.option("--suite", default="quickstart", show_default=True)
@click.option("--workers", type=click.IntRange(2, 64), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Where to write all figures.")
def main(suite: str, workers: int, rounds: int, out: Path | None) -> None:
    """Compare N local workers with one."""
    torch.set_num_threads(1)
    prepared = prepare(load_suite(suite))
    require_engines(prepared)
    found: list[Decoding] = []
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    click.echo(f"{suite}: one thread per worker, {load}")
    for number in range(rounds):
        # in turn, so that a machine that slows down slows both
        for count in (1, workers) if number % 2 == 0 else (workers, 1):
            with tempfile.TemporaryDirectory() as folder:
                found.append(decoded(prepared, count, Path(folder)))
            click.echo(line(found[-1]))
    one, many = ([each for each in found if each.workers == count] for count in (1, workers))
    clock = median_of(one, "wall_s") / median_of(many, "wall_s")
    cost = median_of(many, "workers_cpu_s") / median_of(one, "workers_cpu_s")
    balance = median_of(one, "workers_cpu_s") / median_of(many, "busiest_cpu_s")
    click.echo(f"\n{workers} workers : 1 worker  {clock:.2f} times as fast by the clock")
    click.echo(f"processor time of one worker : that of the busiest of {workers}  {balance:.2f}")
    click.echo(f"processor time of {workers} workers : that of one  {cost:.2f}")
    click.echo(f"content roots equal: {'yes' if len({each.root for each in found}) == 1 else 'no'}")
    if out is not None:
        out.write_text(json.dumps({"suite": suite, "rounds": [asdict(each) for each in found]}, indent=2) + "\n")


def median_of(found: list[Decoding], name: str) -> float:
    """The median of one figure."""
    return statistics.median(getattr(each, name) for each in found)


def line(found: Decoding) -> str:
    """One decoding in words."""
    return (
        f"{found.workers} workers  started in {found.start_s:5.1f} s  {found.tokens} tokens in {found.wall_s:6.1f} s  "
        f"workers {found.workers_cpu_s:6.1f} s of processors, coordinator {found.coordinator_cpu_s:5.1f} s"
    )
