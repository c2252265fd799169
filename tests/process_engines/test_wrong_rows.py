"""No fault of an engine's rows, prompts, parameters or numbers ends with a pass by the default checks.

An engine's code cannot be changed, so that the faults sit around it: in the weights that it loads, in the requests that
reach it, in the answers that leave it. It reports the settings that the suite asked for. Alone, the baseline has the
fault too; beside a clean arm, only the sampled arm has it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from audit.evidence.verdicts import Verdict
from audit.runs.judge import arm_exit_code, exit_code
from audit.store import Store, StoredCheck
from tests.audit.invoke import invoke

from . import wrong_messages, wrong_weights
from .engines import ENGINES, MLX, TestedEngine

FAULTS: Final = (*wrong_weights.CHANGES, *wrong_messages.SENT, wrong_messages.SCORES)
DAILY: Final = ("attention-scaled", "prompt-cut")
DRAFT: Final = {"kind": "draft_model", "model": "draft", "gamma": 4}
SAMPLED: Final = {"name": "sampled", "proposer": DRAFT, "verifier": "chain"}
GREEDY: Final = {"name": "greedy", "proposer": DRAFT, "verifier": "greedy", "sampling": {"temperature": 0}}
SAMPLING: Final[Mapping[str, dict[str, Any]]] = {MLX.name: {"temperature": 1, "top_p": 0.95}}
"""Of engines that have no top_p beside another temperature."""


@dataclass(frozen=True)
class Judged:
    """A run: its exit code and its checks."""

    code: int
    checks: tuple[StoredCheck, ...]

    def of(self, *arms: str) -> tuple[StoredCheck, ...]:
        return tuple(check for check in self.checks if check.arm in arms)

    def show(self) -> None:
        """Print the verdicts, which `-rP` shows."""
        for check in self.checks:
            if check.verdict is not Verdict.NOT_RUN:
                print(f"{check.arm:<24} {check.check:<18} {check.verdict.value:<13} {check.summary[:200]}")
        print(self.code, {arm: arm_exit_code(self.of(arm)) for arm in sorted({check.arm for check in self.checks})})


def noticed(ours: tuple[StoredCheck, ...], clean: tuple[StoredCheck, ...]) -> set[str]:
    """The checks that certify the clean arm and not this one."""
    certified = {check.check for check in clean if check.verdict is Verdict.CERTIFIED}
    return certified - {check.check for check in ours if check.verdict is Verdict.CERTIFIED}


@dataclass(frozen=True)
class EngineRuns:
    """Runs suites on one engine, whose clean settings are `clean`."""

    engine: TestedEngine
    python: str
    clean: Mapping[str, Any]
    out: Path

    def run(self, name: str, arms: list[dict[str, Any]], settings: Mapping[str, Any]) -> Judged:
        folder = self.out / name
        folder.mkdir(parents=True)
        document = {
            "version": 1,
            "name": name,
            "backend": self.engine.name,
            "batch_size": 1,
            "models": dict(self.engine.sources),
            "engine": dict(settings),
            "workloads": [{"name": "chat", "prompts": "suites:prompts/chat.jsonl", "limit": 20}],
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
            return Judged(result.exit_code, opened.checks(opened.resolve("latest")))

    def sampled(self, settings: Mapping[str, Any] | None = None, name: str = "sampled") -> dict[str, Any]:
        sampling = SAMPLING.get(self.engine.name, {"temperature": 0.7, "top_p": 0.95})
        engine = {} if settings is None else {"engine": dict(settings)}
        return {**SAMPLED, "name": name, "sampling": sampling, **engine}

    def faulty(self, fault: str) -> dict[str, Any]:
        """The settings of the engine with a fault."""
        folder, kind = self.out / "faults" / fault, self.engine.format
        if fault in wrong_weights.CHANGES and kind is not None:
            changed = wrong_weights.changed_conversion(kind, self.engine.sources["target"], fault, folder)
            return {**self.clean, kind: {**self.clean[kind], "target": str(changed)}}
        source, planted = None, fault
        if fault in wrong_weights.CHANGES:
            source = wrong_weights.changed_source(self.engine.sources["target"], fault, folder / "source")
            planted = wrong_messages.WEIGHTS
        python = wrong_messages.interpreter(folder / "bin", self.python, self.engine.name, planted, source)
        return {**self.clean, "python": python}


@pytest.fixture(scope="session")
def runs(engine, engine_settings, request, tmp_path_factory):
    python = sys.executable if engine.format is not None else request.getfixturevalue("mlx_python")
    return EngineRuns(engine, python, engine_settings, tmp_path_factory.mktemp(engine.name))


@pytest.fixture(scope="session")
def clean(runs):
    return runs.run("clean", [runs.sampled(), GREEDY], runs.clean)


def over(*values):
    """Parameters of a test: an engine and a further value each, the first of which is for every day."""
    return [
        pytest.param(engine, value, marks=(getattr(pytest.mark, engine.mark), *more), id=f"{engine.mark}-{name}")
        for engine in ENGINES
        for name, value, *more in values
    ]


SLOW: Final = pytest.mark.slow
REST: Final = tuple(fault for fault in FAULTS if fault not in DAILY)
EACH: Final = [*((fault, fault) for fault in DAILY), *((fault, fault, SLOW) for fault in REST)]


@pytest.mark.parametrize(("engine", "known"), over(("clean", ())), indirect=["engine"])
def test_the_clean_engine_has_no_fault(engine, clean, known):
    clean.show()
    assert [check.check for check in clean.checks if check.verdict is Verdict.FAULT] == []


@pytest.mark.parametrize(("engine", "fault"), over(*EACH), indirect=["engine"])
def test_a_fault_alone_ends_with_no_pass(engine, runs, clean, fault):
    judged = runs.run(f"alone-{fault}", [runs.sampled()], runs.faulty(fault))
    judged.show()
    assert judged.code in (1, 3)
    assert noticed(judged.checks, clean.of("sampled"))


@pytest.mark.parametrize(("engine", "faults"), over(("daily", DAILY), ("rest", REST, SLOW)), indirect=["engine"])
def test_a_fault_beside_a_clean_arm_ends_with_no_pass(engine, runs, clean, faults):
    """Each sampled arm has an engine of its own; the greedy arm and all baselines have the clean one."""
    arms = [runs.sampled(runs.faulty(fault), fault) for fault in faults]
    judged = runs.run(f"beside-{faults[0]}", [*arms, GREEDY], runs.clean)
    judged.show()
    assert {check.check: check.verdict for check in judged.of("greedy")} == {
        check.check: check.verdict for check in clean.of("greedy")
    }
    codes = {fault: exit_code(judged.of(fault, "greedy")) for fault in faults}
    assert 0 not in codes.values()
    assert [fault for fault in faults if not noticed(judged.of(fault), clean.of("sampled"))] == []


@pytest.mark.parametrize(("engine", "fault"), over(("temperature", "temperature", SLOW)), indirect=["engine"])
def test_a_greedy_arm_whose_engine_draws_ends_with_no_pass(engine, runs, clean, fault):
    """The baseline draws too, with the same seed."""
    judged = runs.run("hot", [GREEDY], runs.faulty(fault))
    judged.show()
    assert judged.code in (1, 3)
    assert noticed(judged.checks, clean.of("greedy"))
