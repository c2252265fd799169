"""What recording costs: speculative decoding without a record and at each level."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from engine.core.types import RecordLevel
from tests.bench.figures import Line, Table, measure, ratio
from tests.bench.setting import Engine, Setting, lean_pair, requests_of, tokens_in

OFF = "off"
LEVELS = (RecordLevel.TOKENS, RecordLevel.SCALARS, RecordLevel.TOPK, RecordLevel.FULL)


def run(setting: Setting) -> Iterator[Table]:
    pair = lean_pair(setting)
    target, draft = pair.target, pair.draft
    base = {"target": target, "draft": draft, "proposer": "draft_model", "gamma": setting.gamma}
    engines = {OFF: Engine(**base, record=False)} | {level.value: Engine(**base, level=level) for level in LEVELS}
    for group in setting.chosen("templated"):
        requests = requests_of(setting, group)
        jobs = {name: functools.partial(engine.run, requests) for name, engine in engines.items()}
        runs = measure(jobs, setting)
        rates = {name: runs.rates(name, tokens_in) for name in engines}
        yield Table(group, tuple(_line(name, rates, runs.first(name)) for name in engines))


def _line(name, rates, generations) -> Line:
    stored = sum(len(each.trace) for each in generations)
    return Line(
        name,
        {
            "tokens/s": ratio(rates[name], [1.0] * len(rates[name])),
            "x off": ratio(rates[name], rates[OFF]),
            "trace bytes per token": stored / tokens_in(generations),
        },
    )
