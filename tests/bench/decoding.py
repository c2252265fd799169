"""Speculative against plain decoding on the bundled pair, interleaved in one run.

Every round times each arm once on the same prompts; the table gives medians
over rounds and the spread of the ratio to plain decoding in the same round.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.backends.arm import ArmPlan, ModelSource
from engine.backends.base import Backend, Prompt
from engine.backends.native import open_models
from engine.rng import stream_of
from engine.types import Protocol, RecordLevel, Request, SamplingParams

ROUNDS = 5
LENGTH = 64
PROMPTS = 6
ARMS = {
    "plain": ArmPlan(Protocol.GREEDY, rows=1, level=RecordLevel.TOKENS),
    "draft model, gamma 4": ArmPlan(Protocol.GREEDY, "draft_model", 4, "draft", rows=1, level=RecordLevel.TOKENS),
    "n-gram, gamma 4": ArmPlan(Protocol.GREEDY, "ngram", 4, rows=1, level=RecordLevel.TOKENS),
    "draft model, scalars": ArmPlan(Protocol.GREEDY, "draft_model", 4, "draft", rows=1, level=RecordLevel.SCALARS),
    "draft model, full": ArmPlan(Protocol.GREEDY, "draft_model", 4, "draft", rows=1, level=RecordLevel.FULL),
}


@dataclass(frozen=True)
class Line:
    arm: str
    tokens_per_second: float
    ratio: float
    ratio_low: float
    ratio_high: float


def prompts(backend: Backend) -> list[Request]:
    folder = Path(__file__).parents[2] / "suites" / "prompts"
    sampling = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)
    rows = []
    for domain in ("tools", "json", "copy"):
        rows += [json.loads(line) for line in (folder / f"{domain}.jsonl").read_text().splitlines()[:PROMPTS]]
    encoded = [backend.encode(Prompt(tuple(row["messages"]), tuple(row.get("tools", ())))) for row in rows]
    return [
        Request(row["id"], tokens, sampling, stream_of(row["id"])) for row, tokens in zip(rows, encoded, strict=True)
    ]


def seconds(backend: Backend, requests: list[Request]) -> float:
    began = time.perf_counter()
    for _ in backend.generate(requests):
        pass
    return time.perf_counter() - began


def measure() -> list[Line]:
    torch.set_num_threads(1)
    workshop = open_models({name: ModelSource(f"bundled:{name}") for name in ("target", "draft")})
    backends = {name: workshop.arm(plan) for name, plan in ARMS.items()}
    requests = prompts(backends["plain"])
    times: dict[str, list[float]] = {name: [] for name in backends}
    for _ in range(ROUNDS):
        for name, backend in backends.items():
            times[name].append(seconds(backend, requests))
    tokens = len(requests) * LENGTH
    lines = []
    for name, taken in times.items():
        ratios = [plain / own for plain, own in zip(times["plain"], taken, strict=True)]
        middle = tokens / statistics.median(taken)
        lines.append(Line(name, middle, statistics.median(ratios), min(ratios), max(ratios)))
    return lines


def main() -> None:
    print(f"{'arm':24} {'tokens/s':>9} {'x plain':>8} {'low':>6} {'high':>6}")
    for line in measure():
        spread = f"{line.ratio_low:6.2f} {line.ratio_high:6.2f}"
        print(f"{line.arm:24} {line.tokens_per_second:9.0f} {line.ratio:8.2f} {spread}")


if __name__ == "__main__":
    main()
