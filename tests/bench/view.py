"""`python -m tests.bench view`: how long the pages of `audit view` take on a large store.

The store is that of `python -m tests.bench store`: real records of the bundled pair, stored again and again. Two runs:
one of many requests with one short record each, one of many tokens. Pages are asked for over a socket, one after
another, by a client that has been let in. No time is asserted.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import click
import httpx2
import torch
import uvicorn

from audit.commands.view import listening
from audit.evidence.environment import hardware
from audit.report.html import charts
from audit.report.html.registry import sections
from audit.store import RunStatus, Store, migrate
from audit.store.browse.browser import Browser
from audit.store.canonical import jsonable
from audit.view.access import new_access
from audit.view.app import Viewer, application
from tests.bench.store import LENGTH, fill, generations

SHORT = 8
"""Tokens of a request of the run of many requests."""


@dataclass(frozen=True)
class PageTimes:
    """Milliseconds of one page: the first time, and quantiles of the later ones."""

    run: str
    page: str
    first_ms: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """Processor time of client and server, the mean of the later ones; other work does not lengthen it."""
    kilobytes: float


@dataclass(frozen=True)
class Filled:
    """A run of the bench's store, with its last case."""

    name: str
    run: str
    last: str


@contextmanager
def browsing(store: str) -> Iterator[httpx2.Client]:
    """A client of a viewer in a thread."""
    with Browser.open(store) as browser, listening(0) as listener:
        charts.ready()  # as the command does
        access = new_access(listener.getsockname()[1])
        app = application(Viewer(browser, lambda line: click.echo(line, err=True)), access)
        server = uvicorn.Server(uvicorn.Config(app, access_log=False, lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        with httpx2.Client(base_url=f"http://127.0.0.1:{access.port}", trust_env=False, timeout=600) as client:
            client.get(access.address).raise_for_status()
            yield client
        server.should_exit = True
        thread.join(10)


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
    return int(start) + int(one.last.split("/c")[1].split("#")[0]) * 2


def timed(client: httpx2.Client, one: Filled, name: str, path: str, rounds: int) -> PageTimes:
    """Ask for one page again and again."""
    spent, size, busy = [], 0, 0.0
    for place in range(rounds + 1):
        busy = time.process_time() if place == 1 else busy
        began = time.perf_counter()
        answer = client.get(path)
        spent.append(1000 * (time.perf_counter() - began))
        answer.raise_for_status()
        size = len(answer.content)
    later, busy = sorted(spent[1:]), 1000 * (time.process_time() - busy) / rounds
    quantile = later[min(len(later) - 1, int(0.99 * len(later)))]
    return PageTimes(one.name, name, spent[0], statistics.median(later), quantile, busy, size / 1000)


@click.command()
@click.option("--tokens", type=click.IntRange(min=10), default=1_000_000, show_default=True)
@click.option("--requests", type=click.IntRange(min=10), default=100_000, show_default=True)
@click.option("--distinct", type=click.IntRange(min=1), default=48, show_default=True, help="Requests decoded.")
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Questions for each page.")
@click.option("--postgres", metavar="URL", help="An empty PostgreSQL database instead of SQLite.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Default: build/bench/view.json.")
def main(tokens: int, requests: int, distinct: int, rounds: int, postgres: str | None, out: Path | None) -> None:
    """Measure the pages of a run of REQUESTS requests and of a run of TOKENS tokens."""
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        url = postgres or f"sqlite:///{folder}/audit.db"
        migrate.upgrade(url)
        runs = list(filled(url, distinct, tokens, requests))
        with browsing(url) as client:
            for one in runs:
                for name, path in pages(client, one):
                    found.append(timed(client, one, name, path, rounds))
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
