"""No fault of an engine's rows, prompts, parameters or numbers ends with a pass by the default checks.

An engine's code cannot be changed, so that the faults sit around it: in the weights that it loads, in the requests that
reach it, in the answers that leave it. It reports the settings that the suite asked for. Alone, the baseline has the
fault too; beside a clean arm, only the sampled arm has it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from audit.evidence.verdicts import Verdict
from audit.runs.judge import arm_exit_code, exit_code
from audit.store import Store, StoredCheck
from tests.audit.invoke import invoke

from . import wrong_messages, wrong_weights
from .engines import ENGINES, LLAMA, MLX, OPENVINO, ORT, TestedEngine

FAULTS: Final = (*wrong_weights.CHANGES, *wrong_messages.SENT, wrong_messages.SCORES)
DRAFT: Final = {"kind": "draft_model", "model": "draft", "gamma": 4}
PROPOSERS: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    LLAMA.name: (DRAFT, {"kind": "ngram_simple", "gamma": 4}),
    OPENVINO.name: ({"kind": "prompt_lookup", "gamma": 4},),
}
"""Of engines that do not keep the target's law, or its numbers, with a draft model.

llama.cpp gives every token of a step with a draft the log-probability 0: a second arm hardly drafts. OpenVINO draws
tokens that the parameters exclude.
"""
SAMPLING: Final[Mapping[str, dict[str, Any]]] = {
    MLX.name: {"temperature": 1, "top_p": 0.95},
    ORT.name: {"temperature": 0.7, "top_k": 50, "top_p": 0.95},
}
"""Of engines that have no top_p beside another temperature, or no exact one without top_k."""
KNOWN: Final[Mapping[str, set[tuple[str, str]]]] = {
    LLAMA.name: {("sampled", "logprob_closeness"), ("greedy", "logprob_closeness")}
}
"""Faults of the clean engine itself, by arm and check."""


SAMPLES: Final = {"temperature": 4}
"""Of each prompt. The models are peaked: a temperature of 1 for 0.7 moves no frequency by more than 0.03."""
TOGETHER: Final = {
    "weights": tuple(wrong_weights.CHANGES),
    "messages": tuple(fault for fault in FAULTS if fault not in wrong_weights.CHANGES and fault not in SAMPLES),
    "sampling": tuple(SAMPLES),
}
RANKS: Final = {Verdict.NOT_RUN: 0, Verdict.CERTIFIED: 0, Verdict.INCONCLUSIVE: 1, Verdict.FAULT: 2}


@dataclass(frozen=True)
class Judged:
    """A run: its exit code and its checks."""

    code: int
    checks: tuple[StoredCheck, ...]
    known: set[tuple[str, str]]
    """Faults of the clean engine itself."""

    def of(self, *arms: str) -> tuple[StoredCheck, ...]:
        """The checks of some arms, without the known faults."""
        return tuple(check for check in self.checks if check.arm in arms and not self.is_known(check))

    def is_known(self, check: StoredCheck) -> bool:
        """True of a fault of the clean engine; the arm of a fault is named after both."""
        return (check.arm.partition("-")[0], check.check) in self.known

    def show(self) -> None:
        """Print the verdicts, which `-rP` shows."""
        for check in self.checks:
            if check.verdict is not Verdict.NOT_RUN:
                print(f"{check.arm:<24} {check.check:<18} {check.verdict.value:<13} {check.summary[:200]}")
        print(self.code, {arm: arm_exit_code(self.of(arm)) for arm in sorted({check.arm for check in self.checks})})


def noticed(ours: Judged, clean: Judged, arms: Mapping[str, str]) -> set[tuple[str, str]]:
    """The checks that judge our arms worse than the clean ones; `arms` has the clean arms by ours."""
    before = {(name, check.check): RANKS[check.verdict] for name, arm in arms.items() for check in clean.of(arm)}
    after = {(check.arm, check.check): RANKS[check.verdict] for check in ours.of(*arms)}
    return {key for key, rank in after.items() if rank > before.get(key, 0)}


@dataclass(frozen=True)
class EngineRuns:
    """Runs suites on one engine, whose clean settings are `clean`."""

    engine: TestedEngine
    python: str
    clean: Mapping[str, Any]
    out: Path
    made: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The settings of engines with a fault."""

    def run(self, name: str, arms: list[dict[str, Any]], settings: Mapping[str, Any], samples: int = 1) -> Judged:
        folder = self.out / name
        folder.mkdir(parents=True)
        document = {
            "version": 1,
            "name": name,
            "backend": self.engine.name,
            "batch_size": 1,
            "samples": samples,
            "models": dict(self.engine.sources),
            "engine": dict(settings),
            # a floor that a clean arm misses leaves a check undecided whether or not the fault shows
            "coverage": {"least": 0},
            "workloads": [{"name": "chat", "prompts": "suites:prompts/chat.jsonl", "limit": 40}],
            "sampling": {"max_new_tokens": 24},
            "arms": arms,
        }
        (folder / "suite.yaml").write_text(yaml.safe_dump(document))
        store = f"sqlite:///{folder / 'audit.db'}"
        programs = {arm.get("engine", settings).get("python") for arm in arms} | {settings.get("python")}
        allowed = [part for path in sorted(filter(None, programs)) for part in ("--allow-engine-python", path)]
        result = invoke("run", str(folder / "suite.yaml"), "--store", store, *allowed)
        assert result.exit_code in (0, 1, 3), f"{result.stderr}\n{result.exception!r}"
        with Store.open(store, create=False, read_only=True) as opened:
            return Judged(result.exit_code, opened.checks(opened.resolve("latest")), KNOWN.get(self.engine.name, set()))

    @property
    def proposers(self) -> tuple[dict[str, Any], ...]:
        return PROPOSERS.get(self.engine.name, (DRAFT,))

    def sampled(self, settings: Mapping[str, Any] | None = None, fault: str = "") -> list[dict[str, Any]]:
        """The sampled arms, with settings of their own, named after a fault."""
        sampling = SAMPLING.get(self.engine.name, {"temperature": 0.7, "top_p": 0.95})
        more = {} if settings is None else {"engine": dict(settings)}
        shared = {"verifier": "chain", "sampling": sampling, **more}
        names = zip(("sampled", "copied"), self.proposers, strict=False)
        return [{"name": f"{name}{fault}", "proposer": proposer, **shared} for name, proposer in names]

    def greedy(self) -> dict[str, Any]:
        """An arm at temperature 0."""
        return {"name": "greedy", "proposer": self.proposers[0], "verifier": "greedy", "sampling": {"temperature": 0}}

    def faulty(self, fault: str) -> Mapping[str, Any]:
        """The settings of the engine with a fault."""
        if fault not in self.made:
            self.made[fault] = {**self.clean, **self._changed(fault)}
        return self.made[fault]

    def _changed(self, fault: str) -> Mapping[str, Any]:
        folder, kind = self.out / "faults" / fault, self.engine.format
        if fault in wrong_weights.CHANGES and kind is not None:
            changed = wrong_weights.changed_conversion(kind, self.engine.sources["target"], fault, folder)
            return {kind: {**self.clean[kind], "target": str(changed)}}
        source, planted = None, fault
        if fault in wrong_weights.CHANGES:
            source = wrong_weights.changed_source(self.engine.sources["target"], fault, folder / "source")
            planted = wrong_messages.WEIGHTS
        python = wrong_messages.interpreter(folder / "bin", self.python, self.engine.name, planted, source)
        return {"python": python}


@pytest.fixture(scope="session")
def runs(engine, engine_settings, request, tmp_path_factory):
    python = sys.executable if engine.format is not None else request.getfixturevalue("mlx_python")
    return EngineRuns(engine, python, engine_settings, tmp_path_factory.mktemp(engine.name))


@pytest.fixture(scope="session")
def clean(runs):
    """The clean run with so many samples of each prompt, made once."""

    @functools.cache
    def run(samples: int) -> Judged:
        return runs.run(f"clean-{samples}", [*runs.sampled(), runs.greedy()], runs.clean, samples)

    return run


def over(values):
    """Parameters of a test: an engine and a further named value each."""
    return [
        pytest.param(engine, value, marks=getattr(pytest.mark, engine.mark), id=f"{engine.mark}-{name}")
        for engine in ENGINES
        for name, value in values.items()
    ]


@pytest.mark.parametrize(
    "engine", [pytest.param(e, id=e.mark, marks=getattr(pytest.mark, e.mark)) for e in ENGINES], indirect=True
)
def test_the_clean_engine_has_no_fault_but_the_known_ones(engine, clean):
    judged = clean(1)
    judged.show()
    faults = {(check.arm, check.check) for check in judged.checks if check.verdict is Verdict.FAULT}
    assert faults == judged.known


@pytest.mark.parametrize(("engine", "fault"), over(dict(zip(FAULTS, FAULTS, strict=True))), indirect=["engine"])
def test_a_fault_alone_ends_with_no_pass(engine, runs, clean, fault):
    arms, samples = runs.sampled(), SAMPLES.get(fault, 1)
    judged = runs.run(f"alone-{fault}", arms, runs.faulty(fault), samples)
    judged.show()
    assert judged.code in (1, 3)
    worse = noticed(judged, clean(samples), {arm["name"]: arm["name"] for arm in arms})
    print(sorted(worse))
    assert worse


@pytest.mark.parametrize(("engine", "faults"), over(TOGETHER), indirect=["engine"])
def test_a_fault_beside_a_clean_arm_ends_with_no_pass(engine, runs, clean, faults):
    """Each sampled arm has an engine of its own; the greedy arm and all baselines have the clean one."""
    arms = {fault: runs.sampled(runs.faulty(fault), f"-{fault}") for fault in faults}
    samples = max(SAMPLES.get(fault, 1) for fault in faults)
    judged = runs.run(f"beside-{faults[0]}", [*chain.from_iterable(arms.values()), runs.greedy()], runs.clean, samples)
    judged.show()
    verdicts = [{check.check: check.verdict for check in run.of("greedy")} for run in (judged, clean(samples))]
    assert verdicts[0] == verdicts[1]
    for fault, listed in arms.items():
        names = {arm["name"]: arm["name"].removesuffix(f"-{fault}") for arm in listed}
        worse = noticed(judged, clean(samples), names)
        print(fault, exit_code(judged.of(*names, "greedy")), sorted(worse))
        assert exit_code(check for check in judged.checks if check.arm in (*names, "greedy")) != 0
        assert worse, fault


@pytest.mark.parametrize(("engine", "fault"), over({"temperature": "temperature"}), indirect=["engine"])
def test_a_greedy_arm_whose_engine_draws_ends_with_no_pass(engine, runs, clean, fault):
    """The baseline draws too, with the same seed."""
    judged = runs.run("hot", [runs.greedy()], runs.faulty(fault))
    judged.show()
    assert judged.code in (1, 3)
    assert noticed(judged, clean(1), {"greedy": "greedy"})
