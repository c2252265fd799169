"""`python -m tests.bench view`: how long the pages of `audit view` take on a large store.

The store is that of `python -m tests.bench store`: real records of the bundled pair, stored again and again. Two runs:
one of many requests with one short record each, one of many tokens. `audit view` serves it in a process of its own.
Pages are asked for over a socket, one after another, by a client that has been let in. No time is asserted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import click
import httpx2
import torch

from audit.evidence.environment import hardware
from audit.report.html.registry import sections
from audit.store import RunStatus, Store, migrate
from audit.store.base.canonical import jsonable
from tests.bench.store import LENGTH, fill, generations

SHORT = 8
"""Tokens of a request of the run of many requests."""


@dataclass(frozen=True)
class PageTimes:
    """Milliseconds of one page: the slowest first visit over fresh servers, and quantiles of the later ones."""

    run: str
    page: str
    first_ms: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """Processor time of the server, the mean of the later ones; other work does not lengthen it."""
    kilobytes: float


@dataclass(frozen=True)
class Filled:
    """A run of the bench's store, with its last case."""

    name: str
    run: str
    last: str


@dataclass(frozen=True)
class Visitor:
    """A client of a server of its own."""

    client: httpx2.Client
    server: int

    def cpu_s(self) -> float:
        """Processor time of the server until now, without the processes that draw its charts."""
        fields = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def browsing(store: str) -> Iterator[Visitor]:
    """A visitor of a fresh server, who has been let in."""
    command = [sys.executable, "-m", "audit", "view", "--no-open", "--store", store]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = server.stderr.readline().partition("shown at ")[2].partition(" ")[0]
            with httpx2.Client(base_url=address.partition("/open")[0], trust_env=False, timeout=600) as client:
                client.get(address).raise_for_status()
                yield Visitor(client, server.pid)
        finally:
            server.send_signal(signal.SIGINT)


def filled(url: str, distinct: int, tokens: int, requests: int) -> Iterator[Filled]:
    """Two finished runs."""
    shapes = (
        ("many requests", generations(distinct, SHORT), requests),
        ("many tokens", generations(distinct), max(1, tokens // LENGTH)),
    )
    with Store.open(url, create=False) as store:
        for name, made, count in shapes:
            run, _ = fill(store, made, count)
            store.finish_run(run, RunStatus.FINISHED, 0)
            yield Filled(name, run, f"spec/c{(count - 1) // 4}#{(count - 1) % 4}")


def pages(client: httpx2.Client, one: Filled) -> Iterator[tuple[str, str]]:
    """The pages of a run by name."""
    at = f"/runs/{one.run}"
    yield "list of runs", "/?suite=bench"
    yield "trends", "/trends"
    for section in sections():
        yield f"section {section.name}", f"{at}/{section.name}"
    yield "requests, first page", f"{at}/requests"
    yield "requests, a page in the middle", f"{at}/requests?onward={middle(client, one)}"
    yield "requests of a domain", f"{at}/requests?domain=tools&arm=spec"
    yield "requests of no domain", f"{at}/requests?domain=none"
    yield "requests with a finding", f"{at}/requests?check=any"
    yield "requests that differ", f"{at}/requests?divergent=1"
    yield "a request", f"{at}/request?{urlencode({'name': one.last})}"
    yield "difference of two runs", f"/diff?a={one.run}&b={one.run}"


def middle(client: httpx2.Client, one: Filled) -> int:
    """The cursor of a page far from both ends."""
    first = client.get(f"/runs/{one.run}/requests").text
    start = first.rpartition("onward=")[2].partition('"')[0]
    return int(start or 0) + int(one.last.split("/c")[1].split("#")[0]) * 2


def visited(visitor: Visitor, path: str) -> tuple[float, int]:
    """Milliseconds and bytes of a visit."""
    began = time.perf_counter()
    answer = visitor.client.get(path)
    spent = 1000 * (time.perf_counter() - began)
    answer.raise_for_status()
    return spent, len(answer.content)


def first_visits(store: str, one: Filled, openings: int) -> dict[str, float]:
    """The slowest first visit of each page, over fresh servers whose pages are asked for without a pause."""
    slowest: dict[str, float] = {}
    for _ in range(openings):
        with browsing(store) as visitor:
            for name, path in pages(visitor.client, one):
                slowest[name] = max(slowest.get(name, 0.0), visited(visitor, path)[0])
    return slowest


def timed(visitor: Visitor, one: Filled, name: str, path: str, rounds: int) -> PageTimes:
    """Ask for one page again and again."""
    _, size = visited(visitor, path)
    busy = visitor.cpu_s()
    later = sorted(visited(visitor, path)[0] for _ in range(rounds))
    busy = 1000 * (visitor.cpu_s() - busy) / rounds
    quantile = later[min(len(later) - 1, int(0.99 * len(later)))]
    return PageTimes(one.name, name, 0.0, statistics.median(later), quantile, busy, size / 1000)


@click.command()
@click.option("--tokens", type=click.IntRange(min=10), default=1_000_000, show_default=True)
@click.option("--requests", type=click.IntRange(min=10), default=100_000, show_default=True)
@click.option("--distinct", type=click.IntRange(min=1), default=48, show_default=True, help="Requests decoded.")
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Questions for each page.")
@click.option(
    "--openings", type=click.IntRange(min=1), default=5, show_default=True, help="Fresh servers for each run."
)
@click.option("--postgres", metavar="URL", help="An empty PostgreSQL database instead of SQLite.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Default: build/bench/view.json.")
def main(
    tokens: int, requests: int, distinct: int, rounds: int, openings: int, postgres: str | None, out: Path | None
) -> None:
    """Measure the pages of a run of REQUESTS requests and of a run of TOKENS tokens."""
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        url = postgres or f"sqlite:///{folder}/audit.db"
        migrate.upgrade(url)
        runs = list(filled(url, distinct, tokens, requests))
        first = {one.name: first_visits(url, one, openings) for one in runs}
        with browsing(url) as visitor:
            for one in runs:
                for name, path in pages(visitor.client, one):
                    later = timed(visitor, one, name, path, rounds)
                    found.append(dataclasses.replace(later, first_ms=first[one.name][name]))
                    click.echo(line(found[-1]))
    path = out or Path("build") / "bench" / "view.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"bench": "view", "hardware": hardware(), "pages": [dataclasses.asdict(each) for each in found]}
    path.write_text(json.dumps(jsonable(document), indent=2) + "\n")


def line(times: PageTimes) -> str:
    """One page, for reading."""
    return (
        f"{times.run}, {times.page}: first {times.first_ms:.0f} ms, p50 {times.p50_ms:.0f} ms, "
        f"p99 {times.p99_ms:.0f} ms, {times.cpu_ms:.0f} ms of processor time, {times.kilobytes:.0f} kB"
    )
