"""The arms of the self-test as suites in memory: one scenario per fault, and a grid of clean arms.

A seed determines the scripted models, the prompts and the random numbers, so
twenty seeds give twenty different pairs of models. Runs nothing.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from audit.suite.prompts import Workload, read_prompts
from audit.suite.spec import CandidateSpec, Case, ProposerSpec, Suite
from audit.text.documents import packaged_file
from engine.backends.engine_spec import ModelSource
from engine.backends.native import ALPHABET
from engine.backends.native.scripted import TOOLS
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.faults.constraints import SENTENCES
from engine.faults.interface import Scenario
from engine.faults.streams import FILTERED
from engine.faults.tools import CALLS

DOMAINS: Final = ("prose", "verse")
PROMPTS: Final = ("chat", "code", "copy", "json", "safety", "tools")
"""Packaged prompts, for the bundled models."""
MOST_PACKAGED: Final = 300
SEEDS_PER_WORLD: Final = 16
"""Scripted seeds reserved per seed of the self-test: the target's, then the drafts'."""
FIRST_CLEAN_SEED: Final = 1000
"""First seed of the clean arms, so that none shares its models with a faulty arm."""
OTHER_SEEDS: Final = 1_000_000
"""Seed offset between an arm and its recording."""

SAMPLINGS: Final[Mapping[str, SamplingParams]] = {
    "T=0": SamplingParams(),
    "T=0.7": SamplingParams(temperature=0.7),
    "T=1": SamplingParams(temperature=1.0),
    "T=1, top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "T=1, penalties": SamplingParams(
        temperature=1.0, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
    ),
}
FAMILIES: Final[Mapping[str, Scenario]] = {
    "chain": Scenario(Protocol.CHAIN),
    "tree": Scenario(Protocol.TREE, "specinfer", gamma=6),
    "block": Scenario(Protocol.BLOCK),
    "gumbel": Scenario(Protocol.GUMBEL),
    "n-gram": Scenario(Protocol.CHAIN, "ngram", drafts=0),
    "early exit": Scenario(Protocol.CHAIN, "early_exit", drafts=0, models="bundled"),
    "fast": Scenario(models="bundled", target={"numerics": "fast"}),
    "transformers": Scenario(models="bundled", target={"loader": "hf"}),
    "grammar": SENTENCES,
    "filter": FILTERED,
    "tools": replace(CALLS, protocol=Protocol.CHAIN),
}
COMMON: Final = tuple(name for name, scenario in FAMILIES.items() if scenario.models == "scripted")
RARE: Final = tuple(name for name in FAMILIES if name not in COMMON)
RARE_EVERY: Final = 10
"""One round in this many includes one of the families over bundled models, by turns: they are slow."""


@dataclass(frozen=True, slots=True)
class CleanArm:
    """One arm without a fault. `seed` is its own."""

    family: str
    sampling: str
    seed: int

    @property
    def scenario(self) -> Scenario:
        """The family's scenario at this sampling; a grammar and its end token stay the family's."""
        scenario, sampling = FAMILIES[self.family], SAMPLINGS[self.sampling]
        own = scenario.sampling
        sampling = replace(sampling, structured=own.structured, stop_token_ids=own.stop_token_ids)
        return replace(scenario, sampling=sampling)


def clean_arms(count: int) -> tuple[CleanArm, ...]:
    """The first `count` arms of an endless cycle through the grid."""
    places = _places()
    return tuple(CleanArm(*next(places), FIRST_CLEAN_SEED + index) for index in range(count))


def _places() -> Iterator[tuple[str, str]]:
    turn = 0
    while True:
        families = (*COMMON, RARE[turn // RARE_EVERY % len(RARE)]) if turn % RARE_EVERY == 0 else COMMON
        yield from ((family, sampling) for family in families for sampling in SAMPLINGS)
        turn += 1


def suite_of(scenario: Scenario, fault: str | None, seed: int, tokens: int, checks: Iterable[str]) -> Suite:
    """A suite of one arm of at most about `tokens` tokens."""
    requests = requests_of(scenario, tokens)
    samples = _samples(scenario, requests)
    drafts = scenario.draft_names
    proposer = ProposerSpec(
        scenario.proposer, scenario.gamma, drafts[0] if drafts else None, scenario.options, drafts[1:]
    )
    return Suite(
        name="selftest",
        path="selftest",
        description="",
        backend="scripted" if scenario.models == "scripted" else "native",
        seed=seed,
        batch_size=scenario.rows,
        samples=samples,
        models=_models(scenario, SEEDS_PER_WORLD * seed),
        cases=cases_of(scenario, math.ceil(requests / samples), seed),
        arms=(
            CandidateSpec(
                name="candidate",
                proposer=proposer,
                verifier=scenario.protocol,
                sampling=scenario.sampling,
                record=RecordLevel.FULL,
                checks={name: {} for name in checks},
                fault=fault,
                beside=scenario.beside,
                stream=scenario.stream,
            ),
        ),
        sha256="",
        document={},
    )


def _models(scenario: Scenario, first: int) -> dict[str, ModelSource]:
    more = {"target": scenario.target}
    return {name: ModelSource(at, **more.get(name, {})) for name, at in scenario.sources(first).items()}


def requests_of(scenario: Scenario, tokens: int) -> int:
    """The number of requests that may emit about so many tokens."""
    return math.ceil(tokens / scenario.sampling.max_new_tokens)


def _samples(scenario: Scenario, requests: int) -> int:
    """Samples per prompt: as many as prompts, because some checks need many prompts and others many samples.

    Greedy arms have one. So do arms over packaged prompts, which all differ, until these are used up.
    """
    if scenario.sampling.greedy:
        return 1
    return math.isqrt(requests) if scenario.models == "scripted" else math.ceil(requests / MOST_PACKAGED)


def recording_of(suite: Suite) -> Suite:
    """The trusted run: the suite's arm without a fault, with other prompts and random numbers."""
    seed = suite.seed + OTHER_SEEDS
    arms = tuple(replace(arm, fault=None, checks={}) for arm in suite.arms)
    usual = Scenario(models="scripted" if suite.backend == "scripted" else "bundled")
    return replace(suite, seed=seed, cases=cases_of(usual, len(suite.cases), seed), arms=arms)


def cases_of(scenario: Scenario, count: int, seed: int) -> tuple[Case, ...]:
    """Prompts for scripted models, or packaged ones for the bundled models, as far as they go."""
    numbers = np.random.default_rng([seed, 1])
    return _letters(scenario, count, numbers) if scenario.models == "scripted" else _packaged(count, numbers)


def _letters(scenario: Scenario, count: int, numbers: np.random.Generator) -> tuple[Case, ...]:
    """As many letters each as the scenario says; its shared beginning is that of the alphabet."""
    length, begin = scenario.prompt, ALPHABET[: scenario.shared]
    sizes = (numbers.integers(length.least, length.most + 1) for _ in range(count))
    texts = [begin + "".join(numbers.choice(list(ALPHABET), size=size))[len(begin) :] for size in sizes]
    tools = TOOLS if scenario.tools else ()
    return tuple(Case(f"p{i}", "selftest", DOMAINS[i % 2], prompt=text, tools=tools) for i, text in enumerate(texts))


def _packaged(count: int, numbers: np.random.Generator) -> tuple[Case, ...]:
    """A selection of the packaged prompts for the bundled models."""
    paths = [packaged_file(f"prompts/{name}.jsonl") for name in PROMPTS]
    workloads = [Workload(path.stem, path, path.stem) for path in paths if path is not None]
    cases = [case for workload in workloads for case in read_prompts(workload).cases]
    return tuple(cases[i] for i in numbers.permutation(MOST_PACKAGED)[:count])
