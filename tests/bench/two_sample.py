"""`python -m tests.bench.two_sample`: our two-sample tests beside those of model-equality-testing.

The peer is the package `model-equality-testing` (MIT; needs torch and matplotlib), used as it is and
not needed by anything else: where it cannot be imported, only our columns are printed. Its call is

    sample = CompletionSample(prompts [N], completions [N, L], m=number of prompts)
    run_two_sample_test(sample, other, pvalue_type="permutation_pvalue", stat_type="mmd_hamming", b=B)

which returns (p, statistic); `stat_type` may also be "mmd_kspectrum" (runs of up to 5, the default),
"mmd_all_subsequences", "two_sample_chi_squared", "two_sample_L1" and "two_sample_L2". It permutes across
prompts and its p is b / B, which can be 0; ours permutes within prompts and is (1 + b) / (1 + B).

Three tables: do the statistics agree on the same samples; how long does a test take; how often does it
reject, where nothing is wrong and where something is. Nothing is asserted.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from audit.stats.binomial import clopper_pearson
from audit.stats.two_sample import TwoSampleData, bigram_test, first_token_test, hamming_test, spectrum_test

VOCABULARY = 20
PROMPTS = 4
OURS = {"hamming": hamming_test, "spectrum": spectrum_test, "bigram": bigram_test, "first token": first_token_test}
THEIRS = {"hamming": "mmd_hamming", "spectrum": "mmd_kspectrum"}


@dataclass(frozen=True)
class World:
    """One chain per prompt: `laws` [P, V + 1, V], the last row draws the first token."""

    laws: np.ndarray


def world(seed: int, leak: float = 0.0) -> World:
    """Of each chain, `leak` belongs to another one."""
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1_000_000)
    own, foreign = (each.dirichlet(np.full(VOCABULARY, 0.2), size=(PROMPTS, VOCABULARY + 1)) for each in (rng, other))
    return World((1 - leak) * own + leak * foreign)


def respond(where: World, rng: np.random.Generator, prompts: np.ndarray, length: int) -> np.ndarray:
    """[N, length] responses of equal length: the peer counts padding as tokens, ours does not."""
    tokens = np.empty((len(prompts), length), dtype=np.int64)
    last = np.full(len(prompts), VOCABULARY)
    for place in range(length):
        steps = np.cumsum(where.laws[prompts, last], axis=1)
        last = np.minimum((steps < rng.random((len(prompts), 1))).sum(axis=1), VOCABULARY - 1)
        tokens[:, place] = last
    return tokens


def draw(seed: int, sizes: tuple[tuple[int, ...], tuple[int, ...]], length: int, leak: float = 0.0) -> TwoSampleData:
    """Two arms with `sizes` responses per prompt; the second arm's chains leak."""
    rng = np.random.default_rng(seed)
    prompts = [np.repeat(np.arange(PROMPTS), each) for each in sizes]
    tokens = [respond(world(seed, share), rng, own, length) for own, share in zip(prompts, (0.0, leak), strict=True)]
    return TwoSampleData(
        np.concatenate(tokens), np.concatenate(prompts), np.repeat([False, True], [len(p) for p in prompts])
    )


Peer = Callable[[TwoSampleData, str, int], tuple[float, float]]


def load_peer() -> Peer | None:
    """(p, statistic) of the installed package, quietly; None where it is not installed."""
    try:
        algorithm = importlib.import_module("model_equality_testing.algorithm")
        samples = importlib.import_module("model_equality_testing.distribution").CompletionSample
    except ImportError:
        return None

    def call(sample: TwoSampleData, kind: str, permutations: int) -> tuple[float, float]:
        arms = [
            samples(sample.prompt[sample.second == arm], sample.tokens[sample.second == arm], m=PROMPTS)
            for arm in (False, True)
        ]
        with contextlib.redirect_stderr(io.StringIO()):
            return algorithm.run_two_sample_test(
                *arms, pvalue_type="permutation_pvalue", stat_type=kind, b=permutations
            )

    return call


def agreement(peer: Peer, samples: int) -> list[dict]:
    """The largest difference of the statistics, with prompts of equal and of unequal numbers."""
    rows = []
    for name, kind in THEIRS.items():
        for label, sizes in (("equal", ((8,) * 4, (8,) * 4)), ("unequal", ((3, 9, 6, 2), (7, 2, 6, 12)))):
            gaps, values = [], []
            for seed in range(samples):
                sample = draw(seed, sizes, 12, 0.5)
                ours = OURS[name](sample, np.random.default_rng(seed), 1).statistic
                gaps.append(abs(ours - peer(sample, kind, 1)[1]))
                values.append(abs(ours))
            rows.append({"statistic": name, "responses": label, "largest gap": max(gaps), "mean size": np.mean(values)})
    return rows


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def times(peer: Peer | None, sizes: tuple[int, ...], permutations: int, length: int = 32) -> list[dict]:
    """Seconds of one test; `size` responses per prompt and arm, four prompts."""
    rows = []
    for name, test in OURS.items():
        for size in sizes:
            sample = draw(size, ((size,) * PROMPTS,) * 2, length, 0.2)
            own = timed(lambda sample=sample, test=test: test(sample, np.random.default_rng(0), permutations))
            row = {"statistic": name, "per prompt": size, "ours": own}
            # the peer computes the kernel again in every permutation
            if peer and name in THEIRS and size <= (64 if name == "hamming" else 8):
                row["theirs"] = timed(lambda sample=sample, name=name: peer(sample, THEIRS[name], permutations))
            rows.append(row)
    return rows


CASES = {
    "equal arms": (((16,) * 4, (16,) * 4), 0.0),
    "equal arms, prompts asked unequally often": (((2, 24, 2, 24), (20, 6, 20, 6)), 0.0),
    "a fifth of another chain": (((16,) * 4, (16,) * 4), 0.2),
    "half of another chain": (((16,) * 4, (16,) * 4), 0.5),
}


def rejections(peer: Peer | None, runs: int, permutations: int, level: float = 0.05) -> list[dict]:
    """Share of rejections at `level` with a 99 % interval; the peer on the Hamming kernel."""
    rows = []
    for label, (sizes, leak) in CASES.items():
        samples = [draw(seed, sizes, 16, leak) for seed in range(runs)]
        row = {"case": label}
        for name, test in OURS.items():
            found = [test(each, np.random.default_rng(k), permutations).p for k, each in enumerate(samples)]
            row[name] = share(found, level)
        if peer:
            found = [peer(each, "mmd_hamming", permutations)[0] for each in samples]
            row["theirs, hamming"] = share(found, level)
            row["theirs, p = 0"] = sum(p == 0 for p in found)
        rows.append(row)
    return rows


def share(p_values: list[float], level: float) -> str:
    hits = sum(p <= level for p in p_values)
    interval = clopper_pearson(hits, len(p_values))
    return f"{hits / len(p_values):.3f} ({interval.low:.3f}..{interval.high:.3f})"


def shown(title: str, rows: list[dict]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([_text(row.get(name, "-")) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([f"[{title}]", *lines])


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@click.command()
@click.option("--quick", is_flag=True, help="Tiny: does it run at all?")
@click.option("--runs", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--permutations", type=click.IntRange(min=1), default=99, show_default=True)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Default: build/bench.")
def main(quick: bool, runs: int, permutations: int, out: Path | None) -> None:
    """Compare the two-sample tests with the peer, if there is one."""
    peer = load_peer()
    runs, permutations = (3, 19) if quick else (runs, permutations)
    tables = {} if peer is None else {"agreement": agreement(peer, 3 if quick else 20)}
    tables["seconds"] = times(peer, (4,) if quick else (8, 64, 256), permutations)
    tables["rejections"] = rejections(peer, runs, permutations)
    for title, rows in tables.items():
        click.echo(f"{shown(title, rows)}\n")
    if peer is None:
        click.echo("model-equality-testing is not installed: nothing to compare with")
    out = out or Path("build") / "bench" / "two_sample.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(tables, indent=2, default=float) + "\n")


if __name__ == "__main__":
    main()
