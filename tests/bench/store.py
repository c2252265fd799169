"""`python -m tests.bench store`: rates, bytes per token and times of queries of the provenance store.

Records are real: the bundled pair decodes a few dozen requests at temperature 1 (chain, gamma 4, level scalars), and
the benchmark stores them again and again under other names. No time is asserted.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import torch
from sqlalchemy import text
from tokenizers import Tokenizer

from audit.evidence.environment import fingerprint, hardware
from audit.evidence.records import ArmKind, Level
from audit.report.requests.pieces import TOKENIZER
from audit.store import ArtifactRef, NewArm, NewRequest, NewRun, RunStatus, Store, migrate
from audit.store.base.canonical import jsonable
from audit.store.base.connection import open_readonly, parse_url
from engine import proposers, verify
from engine.core.types import Generation, Protocol, RecordLevel, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.models.files.folder import bundled_folder
from engine.proposers.interface import ProposerParts
from engine.record.effective import Effective
from engine.sampling.draw import draw
from tests.bench.setting import TEMPLATED, Setting, bundled_pair, lean_pair, requests_of

LENGTH = 256
"""Tokens of a request."""
GAMMA = 4
BATCH = 64
"""Requests of one transaction."""
QUERIES = {
    "acceptance by domain": "SELECT * FROM v_acceptance WHERE run = :run ORDER BY arm, domain",
    "rejected tokens of a domain": "SELECT token, COUNT(*), AVG(p), MAX(p) FROM v_token"
    " WHERE run = :run AND domain = 'tools' AND role = 'rejected' GROUP BY token ORDER BY 2 DESC LIMIT 20",
    "acceptance by position": "SELECT * FROM v_acceptance_position WHERE run = :run",
    "one request, token by token": "SELECT * FROM v_token WHERE run = :run AND case_id = 'c0' AND sample = 0",
}
TABLES = ("request", "content", "request_steps", "request_tokens", "token_trace", "log_entry")


@dataclass
class Figures:
    """What one database showed with one number of tokens."""

    database: str
    tokens: int
    steps: int
    tokens_per_s: float
    bytes_per_token: float
    tables: dict[str, float] = field(default_factory=dict)
    query_ms: dict[str, float] = field(default_factory=dict)
    finish_cpu_s: float = 0.0
    """Processor time of ending the run, with its content root."""
    check_s: float = 0.0
    check_cpu_s: float = 0.0
    tokens_per_cpu_s: float = 0.0
    """By the processor time of this process, which other work on the machine does not lengthen."""
    rates: list[float] = field(default_factory=list)
    """Tokens per second of each tenth of the requests."""


def generations(count: int, length: int = LENGTH) -> list[Generation]:
    """Requests of the bundled pair at level scalars, with their texts."""
    setting = Setting(*bundled_pair(), prompts=-(-count // len(TEMPLATED)), length=length, gamma=GAMMA)
    pair, verifier = lean_pair(setting), verify.load(Protocol.CHAIN)
    sampling = SamplingParams(max_new_tokens=length, temperature=1.0, ignore_eos=True, seed=7)
    requests = [dataclasses.replace(each, sampling=sampling) for each in requests_of(setting, "templated")][:count]
    capacity = max(len(each.prompt) for each in requests) + length + GAMMA
    parts = ProposerParts(8, capacity, verifier.facts.draft_rule, draw, pair.target.eos_ids, pair.draft, {})
    tokenizer = Tokenizer.from_file(str(bundled_folder(setting.target) / TOKENIZER))
    options = LoopOptions(8, GAMMA, capacity, RecordLevel.SCALARS, True)
    loop = Loop(pair.target, proposers.build("draft_model", parts), verifier, tokenizer.decode, options)
    return list(loop.run(requests))


def begin() -> NewRun:
    """A run of one arm."""
    arm = NewArm(
        "spec",
        ArmKind.CANDIDATE,
        Level.L4,
        {"verifier": "chain", "proposer": "draft_model", "gamma": GAMMA},
        Effective.from_json({"backend": "native", "proposer": "draft_model", "gamma": GAMMA, "protocol": "chain"}),
        True,
    )
    tokenizer = ArtifactRef("tokenizer", "tokenizer", "bundled:target", None, "a" * 64, {})
    place = fingerprint({"specaudit": "0"}, {}, {})
    return NewRun("bench", "c" * 64, {}, (tokenizer,), place, "bench", None, (arm,))


def fill(store: Store, made: Sequence[Generation], requests: int) -> tuple[str, list[float]]:
    """Store `requests` of them; the run, and the rate of each tenth."""
    run, rates = store.begin_run(begin()), []
    for tenth in range(10):
        numbers = range(requests * tenth // 10, requests * (tenth + 1) // 10)
        news = [
            NewRequest("spec", TEMPLATED[i % len(TEMPLATED)], f"c{i // 4}", i % 4, made[i % len(made)]) for i in numbers
        ]
        began = time.perf_counter()
        for start in range(0, len(news), BATCH):
            store.add_requests(run, news[start : start + BATCH])
        rates.append(sum(len(new.generation.tokens) for new in news) / (time.perf_counter() - began))
    return run, rates


def bench(url: str, made: Sequence[Generation], tokens: int) -> Figures:
    """All figures of one database."""
    requests = max(10, tokens // LENGTH)
    with Store.open(url, create=False) as store:
        before = size(url)
        busy = time.process_time()
        run, rates = fill(store, made, requests)
        busy = time.process_time() - busy
        ended = time.process_time()
        store.finish_run(run, RunStatus.FINISHED, 0)
        ended = time.process_time() - ended
        total = store.load_run(run).arms[0].counts
        began, checking = time.perf_counter(), time.process_time()
        assert store.damage() == ()
        check, checking = time.perf_counter() - began, time.process_time() - checking
    grown = {name: value - before.get(name, 0) for name, value in size(url).items()}
    count = total.output
    return Figures(
        database=parse_url(url).get_backend_name(),
        tokens=count,
        steps=total.steps or 0,
        tokens_per_s=count / sum(count / 10 / rate for rate in rates),
        bytes_per_token=grown.pop("all") / count,
        tables={name: value / count for name, value in grown.items()},
        query_ms={name: milliseconds(url, query, run) for name, query in QUERIES.items()},
        finish_cpu_s=ended,
        check_s=check,
        check_cpu_s=checking,
        tokens_per_cpu_s=count / busy,
        rates=rates,
    )


def milliseconds(url: str, query: str, run: str) -> float:
    """The median of five runs of a query, its rows fetched."""
    engine, spent = open_readonly(parse_url(url)), []
    with engine.connect() as connection:
        for _ in range(5):
            began = time.perf_counter()
            connection.execute(text(query), {"run": run} if ":run" in query else {}).all()
            spent.append(1000 * (time.perf_counter() - began))
    engine.dispose()
    return statistics.median(spent)


def size(url: str) -> dict[str, int]:
    """Bytes of each table with its indexes, and of all."""
    engine = open_readonly(parse_url(url))
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            query = "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r'"
            query += " AND relname = ANY(:names)"
            tables = dict(connection.execute(text(query), {"names": list(TABLES)}).all())
            whole = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        else:
            tables = {}
            whole = connection.execute(
                text("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
            ).scalar_one()
            if "ENABLE_DBSTAT_VTAB" in connection.execute(text("PRAGMA compile_options")).scalars().all():
                stats = "SELECT name, SUM(pgsize) FROM dbstat GROUP BY name"
                tables = {name: n for name, n in connection.execute(text(stats)).all() if name in TABLES}
    engine.dispose()
    return {**tables, "all": whole}


def lines(figures: Figures) -> Iterator[str]:
    """The figures of one database, for reading."""
    ends = figures.rates[0], figures.rates[-1]
    yield f"{figures.database}: {figures.tokens} tokens, {figures.steps} steps"
    yield f"  {figures.tokens_per_s:,.0f} tokens/s (first tenth {ends[0]:,.0f}, last tenth {ends[1]:,.0f})"
    yield f"  {figures.tokens_per_cpu_s:,.0f} tokens per second of this process's processor time"
    parts = ", ".join(f"{name} {value:.1f}" for name, value in sorted(figures.tables.items()))
    yield f"  {figures.bytes_per_token:.1f} bytes per token ({parts})"
    for name, value in figures.query_ms.items():
        yield f"  {name}: {value:.0f} ms"
    yield f"  end of the run: {figures.finish_cpu_s:.2f} s of processor time"
    yield f"  check of everything: {figures.check_s:.2f} s, {figures.check_cpu_s:.2f} s of processor time"


@click.command()
@click.option("--tokens", type=click.IntRange(min=10), default=1_000_000, show_default=True)
@click.option("--distinct", type=click.IntRange(min=1), default=48, show_default=True, help="Requests decoded.")
@click.option("--postgres", metavar="URL", help="An empty PostgreSQL database to measure too.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Default: build/bench/store.json.")
def main(tokens: int, distinct: int, postgres: str | None, out: Path | None) -> None:
    """Measure the store with TOKENS tokens in requests of 256."""
    torch.set_num_threads(1)
    made = generations(distinct)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        urls = [f"sqlite:///{folder}/audit.db", *([postgres] if postgres else [])]
        for url in urls:
            migrate.upgrade(url)
            found.append(bench(url, made, tokens))
            click.echo("\n".join(lines(found[-1])))
    path = out or Path("build") / "bench" / "store.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"bench": "store", "hardware": hardware(), "figures": [dataclasses.asdict(each) for each in found]}
    path.write_text(json.dumps(jsonable(document), indent=2) + "\n")
