"""`python -m tests.fuzz`: try mutated inputs on every command that reads somebody else's documents.

Without `--seed` the seed is fresh, and printed: the same seed gives the same cases. Violations are printed once per
cause, as lines of the corpus. Exit code 0: none.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import click

from tests.fuzz.drive import Chunk, Found, try_chunk
from tests.fuzz.kinds import KINDS


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run of the fuzzer did, for the page on promises."""

    seed: int
    cases: int
    seconds: float
    violations: int
    by_kind: dict[str, int]


@click.command()
@click.option("--cases", type=click.IntRange(min=1), default=2_000, show_default=True)
@click.option("--seed", type=int, help="Default: a fresh one.")
@click.option("--kind", "kinds", type=click.Choice(tuple(KINDS)), multiple=True, help="Default: all.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--figures", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def main(cases: int, seed: int | None, kinds: tuple[str, ...], jobs: int, figures: Path | None) -> None:
    """Fuzz the commands."""
    chosen = seed if seed is not None else random.SystemRandom().randrange(2**32)
    click.echo(f"seed {chosen}: {cases} cases; again with: python -m tests.fuzz --cases {cases} --seed {chosen}")
    began, chunks = time.monotonic(), list(_chunks(kinds or tuple(KINDS), cases, chosen))
    found: dict[str, Found] = {}
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home, _pool(jobs) as pool:
        for done in pool.map(try_chunk, [(chunk, home) for chunk in chunks]):
            counts[done.kind] = counts.get(done.kind, 0) + done.cases
            for item in done.found:
                found.setdefault(item.violation.cause, item)
    seconds = time.monotonic() - began
    for item in found.values():
        click.echo(json.dumps({**item.case.to_json(), "what": item.violation.what, "place": item.violation.place}))
    click.echo(f"{sum(counts.values())} cases in {seconds:.0f} s, {len(found)} causes of violations")
    if figures is not None:
        written = Figures(chosen, sum(counts.values()), round(seconds), len(found), counts)
        figures.write_text(json.dumps(asdict(written), indent=1) + "\n")
    sys.exit(1 if found else 0)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def _chunks(kinds: tuple[str, ...], cases: int, seed: int) -> Iterator[Chunk]:
    """Cases of each kind by its share, in parts that keep several processes busy."""
    whole = sum(KINDS[name].share for name in kinds)
    for name in kinds:
        left, part = -(-cases * KINDS[name].share // whole), 0
        while left > 0:
            yield Chunk(name, min(left, 250), seed * 1_000 + part)
            left, part = left - 250, part + 1


if __name__ == "__main__":
    main()
