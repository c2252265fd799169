"""Batches: rates, and the share of a target forward's cells that is padding because rows draft unequally."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench.figures import Line, Table, measure, ratio
from tests.bench.setting import CountedModel, Counts, Engine, Setting, lean_pair, requests_of, tokens_in

SIZES = (1, 4, 8)


@dataclass(frozen=True)
class Run:
    tokens: int
    counts: Counts
    reading: float
    """Seconds spent on prompts."""


def run(setting: Setting) -> Iterator[Table]:
    pair = lean_pair(setting)
    target, draft = CountedModel(pair.target, setting.clock), CountedModel(pair.draft, setting.clock)
    methods = {"plain": (None, 0), "draft_model": ("draft_model", setting.gamma), "ngram": ("ngram", setting.gamma)}
    for group in setting.chosen("templated"):
        requests = requests_of(setting, group)
        engines = {
            f"{name}, batch {rows}": Engine(target, draft, *method, rows=rows)
            for name, method in methods.items()
            for rows in SIZES
        }
        jobs = {name: _job(engine, target, draft, requests) for name, engine in engines.items()}
        runs = measure(jobs, setting)
        rates = {name: runs.rates(name, lambda found: found.tokens) for name in engines}
        decoding = {name: runs.rates(name, lambda found: found.tokens, lambda found: found.reading) for name in engines}
        yield Table(group, tuple(_line(name, rates, decoding, runs.first(name)) for name in engines))


def _job(engine: Engine, target: CountedModel, draft: CountedModel, requests) -> Callable[[], Run]:
    def job() -> Run:
        target.take(), draft.take()
        tokens = tokens_in(engine.run(requests))
        counts = target.take()
        return Run(tokens, counts, counts.prompt_seconds + draft.take().prompt_seconds)

    return job


def _line(name: str, rates, decoding, found: Run) -> Line:
    method = name.partition(",")[0]
    rows = int(name.rpartition(" ")[2])
    counts = found.counts
    return Line(
        name,
        {
            "tokens/s": ratio(rates[name], [1.0] * len(rates[name])),
            "x batch 1": ratio(rates[name], rates[f"{method}, batch 1"]),
            "x batch 1, decoding": ratio(decoding[name], decoding[f"{method}, batch 1"]),
            "x plain": ratio(rates[name], rates[f"plain, batch {rows}"]),
            "target forwards": counts.steps,
            "cells": counts.cells,
            "rows multiplied": counts.tokens,
            "padding": 1 - counts.tokens / counts.cells,
        },
    )
