"""The control in real engines: its statistics on simulated walks, packaged chains, and its words without an engine."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from audit.selftest.chains import FIRST, SEED, VOCABULARY, Walk, judge_walk, law, leaking, tables
from audit.selftest.engines import QUICK, WAYS, ControlResult, EngineControls, run_controls
from engine.core.registry import CONVERTERS
from engine.core.types import SamplingParams
from tests.support.chain_models import write_all
from tests.support.engine_suites import ROOT

GIVEN = tables(SEED)
WARM = SamplingParams(temperature=1.0)


def walk(table, tokens, seed):
    generator = np.random.default_rng(seed)
    bounds = np.cumsum(law(table, WARM), axis=1)
    path = [FIRST]
    for number in generator.random(tokens):
        path.append(min(int(np.searchsorted(bounds[path[-1]], number)), VOCABULARY - 1))
    return Walk(np.array(path[:-1]), np.array(path[1:]))


def judged(table, tokens, seed=0):
    return judge_walk(walk(table, tokens, seed), law(GIVEN.target, WARM), law(GIVEN.draft, WARM))


def test_a_sound_walk_keeps_the_law_and_a_leak_of_known_size_departs():
    assert [judged(GIVEN.target, 3000, seed).departs for seed in range(5)] == [False] * 5
    leaked = judged(leaking(GIVEN, 0.2).target, 3000)
    assert leaked.departs
    assert leaked.leak.share == pytest.approx(0.2, abs=4 * leaked.leak.error)
    assert leaked.needed(0.2) < 3000 < leaked.needed(0.02)


def test_a_token_of_probability_0_departs():
    seen = walk(GIVEN.target, 100, 0)
    impossible = Walk(seen.before, np.where(np.arange(100) == 50, 0, seen.token))
    assert judge_walk(impossible, law(GIVEN.target, WARM), law(GIVEN.draft, WARM)).p == 0


def test_the_packaged_chains_are_the_ones_that_are_written(tmp_path):
    for folder in write_all(tmp_path):
        packaged = ROOT / "suites" / "models" / folder.name
        assert {path.name for path in packaged.iterdir()} == {path.name for path in folder.iterdir()}
        for name, tensor in load_file(folder / "model.safetensors").items():
            np.testing.assert_array_equal(load_file(packaged / "model.safetensors")[name], tensor)
        assert (packaged / "config.json").read_text() == (folder / "config.json").read_text()


def test_an_engine_that_is_not_installed_is_skipped_in_words():
    controls = run_controls(QUICK, print)
    assert set(WAYS) <= set(CONVERTERS)
    assert controls.failures() == []
    assert all(line.startswith("exact law: skipped for ") and "make venv-" in line for line in controls.skipped)
    assert len(controls.skipped) + len({result.engine for result in controls.results}) == len(WAYS)


def test_a_control_fails_if_a_leak_is_missed_or_a_sound_chain_departs():
    sound, leaked = (judged(table, 3000) for table in (GIVEN.target, leaking(GIVEN, 0.2).target))
    right = [ControlResult("e", "plain", 0.0, sound), ControlResult("e", "plain", 0.2, leaked)]
    wrong = [ControlResult("e", "plain", 0.2, sound), ControlResult("e", "plain", 0.0, leaked)]
    assert EngineControls(tuple(right), ()).failures() == []
    assert len(EngineControls(tuple(wrong), ()).failures()) == 2
    assert EngineControls(tuple(right), ("x",)).document()["results"][1]["verdict"] == "departs"
