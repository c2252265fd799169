"""The driver itself, as far as it comes without vLLM: how it ends, and what it says where there is none."""

import importlib.util
import signal
import subprocess
import sys

import pytest

from engine.backends.vllm.options import VllmSettings
from engine.backends.vllm.supervise import EnginePool
from engine.core.child import Frame, read, write
from engine.core.errors import ModelError

SECONDS = 60
JOB = {"op": "start", "arguments": {}, "repair": None, "model_runner": "auto", "script": None}
without_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="there is vLLM here")


@pytest.fixture
def driver():
    child = subprocess.Popen(
        [sys.executable, "-m", "engine.backends.vllm.driver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield child
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        stream.close()


@pytest.mark.medium
def test_it_ends_with_its_parent(driver):
    """A parent that dies closes the pipe."""
    driver.stdin.close()
    assert driver.wait(SECONDS) == -signal.SIGKILL


@pytest.mark.medium
def test_damage_ends_it_too(driver):
    driver.stdin.write(b"\x10")
    driver.stdin.close()
    assert driver.wait(SECONDS) == -signal.SIGKILL


@pytest.mark.medium
@without_vllm
def test_where_there_is_no_vllm_it_says_so_and_ends(driver):
    write(driver.stdin, Frame(JOB))
    answer = read(driver.stdout)
    assert answer.header["op"] == "failed"
    assert "No module named 'vllm'" in answer.header["message"]
    assert driver.wait(SECONDS) == -signal.SIGKILL


@pytest.mark.medium
@without_vllm
def test_that_is_one_line_with_its_mend():
    pool = EnginePool()
    with pytest.raises(ModelError, match=r"has no vLLM; run this in an environment that has it .* \{python: PATH\}"):
        pool.facts(VllmSettings(sys.executable, JOB, {}, 0, SECONDS, SECONDS, 0, 1, False))
