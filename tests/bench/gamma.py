"""Draft lengths: the speed-up measured, and what the cost model makes of the same run's tau, rho and sigma."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from engine.record import trace
from engine.record.cost import Costs, StepTimes, costs, speedup_of, step_times
from engine.record.metrics import Acceptance, acceptance
from tests.bench.figures import Line, Runs, Table, measure, ratio
from tests.bench.setting import CountedModel, Engine, Setting, lean_pair, requests_of, tokens_in

PLAIN = "plain"
METHODS = ("draft_model", "ngram")


@dataclass(frozen=True)
class Run:
    generations: tuple
    reading: float

    @property
    def tokens(self) -> int:
        return tokens_in(self.generations)

    @property
    def traces(self) -> list[trace.Trace]:
        return [trace.decode(each.trace) for each in self.generations]


@dataclass(frozen=True)
class Terms:
    """Medians over rounds, each against plain decoding in the same round."""

    acceptance: Acceptance
    costs: Costs


def run(setting: Setting) -> Iterator[Table]:
    pair = lean_pair(setting)
    target, draft = CountedModel(pair.target, setting.clock), CountedModel(pair.draft, setting.clock)
    gammas = range(1, 3 if setting.quick else 9)
    engines = {PLAIN: Engine(target)} | {
        f"{method} {gamma}": Engine(target, draft, method, gamma) for method in METHODS for gamma in gammas
    }
    for group in setting.chosen("templated", "copy", "code"):
        requests = requests_of(setting, group)
        jobs = {name: _job(engine, target, draft, requests) for name, engine in engines.items()}
        runs = measure(jobs, setting)
        times = {name: [step_times(each.result.traces) for each in runs.runs[name]] for name in jobs}
        yield Table(group, tuple(_line(name, runs, times) for name in jobs if name != PLAIN))


def _job(engine: Engine, target: CountedModel, draft: CountedModel, requests) -> Callable[[], Run]:
    def job() -> Run:
        for model in (target, draft):
            model.take()
        found = engine.run(requests)
        return Run(found, target.take().prompt_seconds + draft.take().prompt_seconds)

    return job


def _terms(name: str, gamma: int, runs: Runs, times: dict[str, list[StepTimes]]) -> Terms:
    found = [costs(own, plain, gamma) for own, plain in zip(times[name], times[PLAIN], strict=True)]
    rho, sigma = (float(np.median([getattr(each, term) for each in found])) for term in ("rho", "sigma"))
    return Terms(acceptance(runs.first(name).traces), Costs(rho, sigma))


def _line(name: str, runs: Runs, times: dict[str, list[StepTimes]]) -> Line:
    gamma = int(name.rpartition(" ")[2])
    terms = _terms(name, gamma, runs, times)
    tau = terms.acceptance.tokens_per_forward
    whole = [runs.rates(each, lambda found: found.tokens) for each in (name, PLAIN)]
    decoding = [runs.rates(each, lambda found: found.tokens, lambda found: found.reading) for each in (name, PLAIN)]
    return Line(
        name,
        {
            "tau": tau,
            "draft acceptance": terms.acceptance.draft_acceptance_rate,
            "rho": terms.costs.rho,
            "sigma": terms.costs.sigma,
            "S": ratio(*whole),
            "S decoding": ratio(*decoding),
            "tau/(sigma+gamma rho)": speedup_of(tau, gamma, terms.costs),
            "tau/(1+gamma rho)": speedup_of(tau, gamma, Costs(terms.costs.rho, 1.0)),
        },
    )
