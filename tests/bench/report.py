"""`python -m tests.bench report`: time and size of the page of a run of many tokens, by section.

Records are those of the bench `store`: half of the tokens in an arm that speculates, half in its baseline. One pair of
fifty differs, and a stored result of `greedy_equality` names twenty of them, so that every section has something to
show. No time is asserted.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import torch
from tokenizers import Tokenizer

from audit.evidence.environment import hardware
from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.report.html.registry import sections, source_of
from audit.report.html.render import environment, render_page, render_section
from audit.report.requests.pieces import TOKENIZER
from audit.store import NewArm, NewCheck, NewRequest, RunStatus, Store, migrate
from audit.store.base.canonical import jsonable
from engine.core.types import Generation
from engine.models.files.folder import bundled_folder
from engine.record.effective import Effective
from tests.bench.setting import TEMPLATED, bundled_pair
from tests.bench.store import BATCH, LENGTH, begin, generations

PARTED_EVERY = 50
"""One pair of this many has different outputs."""


@dataclass
class PageFigures:
    """The page of one run: wall and processor time in seconds, bytes of the file, and both by section."""

    tokens: int
    requests: int
    seconds: float
    cpu_seconds: float
    bytes: int
    section_seconds: dict[str, float] = field(default_factory=dict)
    section_bytes: dict[str, int] = field(default_factory=dict)


def fill(store: Store, made: Sequence[Generation], requests: int) -> str:
    """A finished run of two arms with `requests` requests each."""
    began = begin()
    plain = Effective.from_json({"backend": "native", "proposer": "plain", "protocol": "greedy"})
    base = NewArm("base", ArmKind.BASELINE, Level.L4, {}, plain, True)
    spec = dataclasses.replace(began.arms[0], spec={**began.arms[0].spec, "baseline": "base"})
    run = store.begin_run(dataclasses.replace(began, arms=(base, spec)))
    for start in range(0, requests, BATCH):
        numbers = range(start, min(start + BATCH, requests))
        store.add_requests(run, [_request("base", made, i, i + (i % PARTED_EVERY == 0)) for i in numbers])
        store.add_requests(run, [_request("spec", made, i, i) for i in numbers])
    tokenizer = Tokenizer.from_file(str(bundled_folder(bundled_pair()[0]) / TOKENIZER))
    store.add_pieces(run, lambda token: str(tokenizer.decode([token], skip_special_tokens=False)))
    store.add_check(run, NewCheck("spec", "greedy_equality", "equality", Level.L4, _result(requests)))
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run


def _request(arm: str, made: Sequence[Generation], number: int, record: int) -> NewRequest:
    domain = TEMPLATED[number % len(TEMPLATED)]
    return NewRequest(arm, domain, f"c{number // 4}", number % 4, made[record % len(made)])


def _result(requests: int) -> CheckResult:
    parted = -(-requests // PARTED_EVERY)
    findings = (Finding(f"spec/c{i // 4}#{i % 4}", 0, "real") for i in range(0, requests, PARTED_EVERY))
    leads = [0.001 * number for number in range(parted)]
    counts = {"numerical": 0, "real": parted, "untriaged": 0, "baseline": 0}
    details = {"divergences": counts, "leads": leads, "noise_bound": 0.01, "noise_positions": 1000}
    return CheckResult(Verdict.FAULT, "differs", n=requests, details=details, findings=tuple(findings)[:20])


def bench(url: str, made: Sequence[Generation], tokens: int) -> PageFigures:
    """The page of a run of about this many tokens, and its sections one by one."""
    with Store.open(url, create=False) as store:
        run = fill(store, made, max(PARTED_EVERY, tokens // LENGTH // 2))
    with Store.open(url, create=False, read_only=True) as store:
        began, busy = time.perf_counter(), time.process_time()
        page = render_page(source_of(store, run))
        spent, busy = time.perf_counter() - began, time.process_time() - busy
        counts = [arm.counts for arm in store.load_run(run).arms]
        figures = PageFigures(
            tokens=sum(each.output for each in counts),
            requests=sum(each.requests for each in counts),
            seconds=spent,
            cpu_seconds=busy,
            bytes=len(page.encode()),
        )
        source, template = source_of(store, run), environment()
        for section in sections():
            began = time.perf_counter()
            figures.section_bytes[section.name] = len(render_section(source, section, template).encode())
            figures.section_seconds[section.name] = time.perf_counter() - began
    return figures


def lines(figures: PageFigures) -> Iterator[str]:
    """The figures, for reading."""
    yield f"{figures.tokens} tokens, {figures.requests} requests"
    yield f"page: {figures.seconds:.2f} s ({figures.cpu_seconds:.2f} s of processor time), {figures.bytes:,} bytes"
    for name, seconds in figures.section_seconds.items():
        yield f"  {name}: {seconds:.2f} s, {figures.section_bytes[name]:,} bytes"


@click.command()
@click.option("--tokens", type=click.IntRange(min=10), default=1_000_000, show_default=True)
@click.option("--distinct", type=click.IntRange(min=2), default=48, show_default=True, help="Requests decoded.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="A folder that keeps store and page.")
@click.option(
    "--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Default: build/bench/report.json."
)
def main(tokens: int, distinct: int, keep: Path | None, out: Path | None) -> None:
    """Measure the page of a run of TOKENS tokens in requests of 256."""
    torch.set_num_threads(1)
    made = generations(distinct)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{keep or folder}/audit.db"
        migrate.upgrade(url)
        figures = bench(url, made, tokens)
    click.echo("\n".join(lines(figures)))
    path = out or Path("build") / "bench" / "report.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"bench": "report", "hardware": hardware(), "figures": dataclasses.asdict(figures)}
    path.write_text(json.dumps(jsonable(document), indent=2) + "\n")
