"""What each numerics mode costs, plain and speculative, in float32 and bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from engine.models import numerics
from tests.bench.figures import Line, Table, measure, ratio
from tests.bench.setting import Engine, Setting, lean, requests_of, tokens_in

FAST = "fast"
DTYPES = ("float32", "bfloat16")


def run(setting: Setting) -> Iterator[Table]:
    for group in setting.chosen("templated"):
        requests = requests_of(setting, group)
        for dtype in DTYPES[:1] if setting.quick else DTYPES:
            yield _table(setting, group, dtype, requests)


def _table(setting: Setting, group: str, dtype: str, requests) -> Table:
    engines, notes = {}, []
    for mode in numerics.REGISTRY:
        try:
            target, draft = lean(setting.target, dtype, mode), lean(setting.draft, setting.draft_dtype)
        except Exception as error:  # a mode that this installation or dtype lacks is a line, not an end
            notes.append(f"{mode}: skipped, {' '.join(str(error).split())}")
            continue
        engines[f"{mode} plain"] = Engine(target)
        engines[f"{mode} speculative"] = Engine(target, draft, "draft_model", setting.gamma)
    runs = measure({name: functools.partial(each.run, requests) for name, each in engines.items()}, setting)
    rates = {name: runs.rates(name, tokens_in) for name in engines}
    lines = tuple(_line(name, rates, runs) for name in engines)
    return Table(f"{group}, {dtype}", lines, tuple(notes))


def _line(name, rates, runs) -> Line:
    mode, _, kind = name.partition(" ")
    plain = {each.request.id: each.tokens for each in runs.first(f"{mode} plain")}
    equal = sum(plain[each.request.id] == each.tokens for each in runs.first(name))
    return Line(
        name,
        {
            "tokens/s": ratio(rates[name], [1.0] * len(rates[name])),
            "x fast": ratio(rates[name], rates[f"{FAST} {kind}"]),
            "x plain": ratio(rates[name], rates[f"{mode} plain"]),
            "outputs equal to plain": f"{equal}/{len(plain)}",
        },
    )
