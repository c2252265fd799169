"""Deaths, hangs and refusals of an engine, told by a process that speaks like the driver."""

import os
import stat
import sys
import time

import pytest

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import Starting
from engine.backends.neighbour import Beside, NeighbourEngine
from engine.backends.vllm.backend import VllmEngine
from engine.backends.vllm.options import VllmSettings
from engine.backends.vllm.supervise import EnginePool, GenerateCall
from engine.backends.vllm.worker_terms import CallTerms
from engine.core.errors import EngineError, ModelError
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams

from .fake_driver import ABORTED, FAILS, HANGS, KILLS, REFUSED

SECONDS = 30
"""More than a process of Python needs to start on a busy machine."""


@pytest.fixture
def python(tmp_path):
    """An interpreter that runs the other module."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} -m tests.engine.backends.vllm.fake_driver\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def pool():
    found = EnginePool()
    yield found
    found.close()


def setting(python, restarts=4, name="a", repair=None, silence=SECONDS):
    job = {"op": "start", "arguments": {"name": name}, "repair": repair, "model_runner": "auto", "script": None}
    return VllmSettings(python, job, {}, 0, silence, SECONDS, restarts, 2, False)


def asked(pool, setting, *firsts, width=2):
    requests = [Request(f"r{i}", (first, 1), SamplingParams()) for i, first in enumerate(firsts)]
    batches = list(GenerateCall(pool, setting, CallTerms(RecordLevel.TOKENS), width).ask(requests))
    outcomes = [each for batch in batches for each in batch.outcomes]
    assert sorted(each.request.id for each in outcomes) == sorted(each.id for each in requests)
    return {each.request.id: each.failure.kind if each.failure else "answered" for each in outcomes}, outcomes


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.medium
def test_all_are_answered_by_one_engine(pool, python):
    kinds, outcomes = asked(pool, setting(python), 1, 2, 3)
    assert set(kinds.values()) == {"answered"}
    assert outcomes[0].answer["tokens"] == [1, 1]
    assert outcomes[0].worker is None


@pytest.mark.medium
def test_an_engine_says_what_it_starts_until_it_has_been_started(pool, python):
    plans = [EngineSpec(Protocol.CHAIN), EngineSpec(Protocol.CHAIN, "ngram", 3)]
    plain, drafting = (VllmEngine(plan, setting(python), None, pool, None) for plan in plans)
    assert isinstance(drafting, Starting)
    assert (plain.starts(), drafting.starts()) == ("vLLM (no draft)", "vLLM (ngram, 3 tokens)")
    assert NeighbourEngine(drafting, Beside(SamplingParams())).starts() == "vLLM (ngram, 3 tokens)"
    pool.facts(setting(python))
    assert (plain.starts(), drafting.starts()) == (None, None), "both have the same settings"


@pytest.mark.medium
def test_the_request_that_kills_the_engine_is_the_one_that_fails(pool, python):
    kinds, outcomes = asked(pool, setting(python), 1, KILLS, 3, 4, 5)
    assert kinds == {"r0": "answered", "r1": "engine_died", "r2": "answered", "r3": "answered", "r4": "answered"}
    (failed,) = [each.failure for each in outcomes if each.failure]
    assert failed.message == "RuntimeError: no room for it"


@pytest.mark.medium
def test_one_that_says_that_it_is_dead_is_dead(pool, python):
    kinds, _ = asked(pool, setting(python), FAILS, 2)
    assert kinds == {"r0": "engine_died", "r1": "answered"}


@pytest.mark.medium
def test_after_too_many_deaths_the_rest_is_given_up(pool, python):
    kinds, outcomes = asked(pool, setting(python, restarts=1), KILLS, KILLS, 3, 4)
    assert set(kinds.values()) == {"engine_died", "not_tried"}
    cause = "RuntimeError: no room for it"
    assert outcomes[-1].failure.message == f"not tried: the engine died 2 times, the last time of: {cause}"
    assert outcomes[0].failure.message == cause


@pytest.mark.medium
def test_without_restarts_requests_that_died_together_name_the_cause(pool, python):
    kinds, outcomes = asked(pool, setting(python, restarts=0), KILLS, 3)
    assert set(kinds.values()) == {"not_tried"}
    assert all(each.failure.message.endswith("RuntimeError: no room for it") for each in outcomes)


@pytest.mark.medium
def test_silence_is_a_timeout(pool, python):
    kinds, _ = asked(pool, setting(python, silence=1, restarts=1), HANGS, width=1)
    assert kinds == {"r0": "timeout"}


@pytest.mark.medium
def test_refusals_keep_the_engines_words(pool, python):
    kinds, outcomes = asked(pool, setting(python), REFUSED, ABORTED, 1)
    assert kinds == {"r0": "refused", "r1": "malformed", "r2": "answered"}
    assert outcomes[0].failure.message == "we have no min_p"


@pytest.mark.medium
def test_arms_with_the_same_settings_share_an_engine_and_facts_outlive_it(pool, python):
    first = pool.facts(setting(python))["pid"]
    assert pool.facts(setting(python))["pid"] == first
    others = [pool.facts(setting(python, name=name))["pid"] for name in "bc"]
    assert len({first, *others}) == 3
    # two at once: the one used last made room, the first is still there
    assert pool.engine(setting(python)).facts["pid"] == first
    assert pool.facts(setting(python, name="b"))["pid"] == others[0]


@pytest.mark.medium
def test_a_closed_engine_leaves_nothing(pool, python):
    engine = pool.engine(setting(python))
    pid, home = engine.facts["pid"], engine.home
    pool.close()
    assert not home.exists()
    deadline = time.monotonic() + SECONDS
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


@pytest.mark.medium
def test_an_engine_that_cannot_start_says_why(pool, python):
    with pytest.raises(ModelError, match="vLLM could not start: no such thing"):
        pool.facts(setting(python, repair="fail"))
    with pytest.raises(EngineError, match=r"engine\.python: there is no interpreter /no/such"):
        pool.facts(setting("/no/such"))


def test_a_missing_vllm_is_one_line(pool, tmp_path):
    path = tmp_path / "without"
    path.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'vllm'\" >&2\nexit 1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(ModelError, match="has no vLLM; run this in an environment that has it"):
        pool.facts(setting(str(path)))
