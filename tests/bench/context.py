"""Prompts of growing length: decoding with the reading of the prompts taken out, and the reading beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.core.types import Request
from tests.bench.figures import Line, Table, measure, ratio
from tests.bench.setting import CountedModel, Engine, Setting, lean_pair, requests_of, tokens_in

LENGTHS = (128, 256, 512, 960)
AT_MOST = 6
"""Prompts per length; every one is read anew in each run."""


@dataclass(frozen=True)
class Run:
    tokens: int
    reading: float
    """Seconds that target and draft spent on prompts."""


def run(setting: Setting) -> Iterator[Table]:
    pair = lean_pair(setting)
    target, draft = CountedModel(pair.target, setting.clock), CountedModel(pair.draft, setting.clock)
    engines = {"plain": Engine(target), "draft_model": Engine(target, draft, "draft_model", setting.gamma)}
    lengths = [each for each in LENGTHS if each + setting.length <= target.context][: 2 if setting.quick else None]
    for group in setting.chosen("templated"):
        base = requests_of(setting, group)
        wanted = {length: grown(base, length) for length in lengths}
        jobs = {
            f"{name}, {length} tokens": _job(engine, target, draft, requests)
            for length, requests in wanted.items()
            for name, engine in engines.items()
        }
        runs = measure(jobs, setting)
        rates = {name: runs.rates(name, lambda found: found.tokens, lambda found: found.reading) for name in jobs}
        whole = {name: runs.rates(name, lambda found: found.tokens) for name in jobs}
        yield Table(group, tuple(_line(name, rates, whole, runs) for name in jobs))


def grown(base: list[Request], length: int) -> list[Request]:
    """Prompts of exactly `length` tokens: the group's prompts one after the other, each request's own last."""
    longer = []
    for index, request in enumerate(base[:AT_MOST]):
        tokens = request.prompt
        while len(tokens) < length:
            index += 1
            tokens = base[index % len(base)].prompt + tokens
        longer.append(dataclasses.replace(request, prompt=tokens[-length:]))
    return longer


def _job(engine: Engine, target: CountedModel, draft: CountedModel, requests) -> Callable[[], Run]:
    def job() -> Run:
        for model in (target, draft):
            model.take()
        tokens = tokens_in(engine.run(requests))
        return Run(tokens, target.take().prompt_seconds + draft.take().prompt_seconds)

    return job


def _line(name: str, rates, whole, runs) -> Line:
    length = name.partition(", ")[2]
    shares = [each.result.reading / each.seconds for each in runs.runs[name]]
    return Line(
        name,
        {
            "decoding tokens/s": ratio(rates[name], [1.0] * len(shares)),
            "x plain": ratio(rates[name], rates[f"plain, {length}"]),
            "x plain, reading included": ratio(whole[name], whole[f"plain, {length}"]),
            "share of time reading": ratio(shares, [1.0] * len(shares)),
        },
    )
