"""One hash of logits under instruction sets that differ, each in a process of its own."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from .exact_machine import hashes

pytestmark = pytest.mark.slow
SETTINGS = {
    "own": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "none": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}


@cache
def answer(name):
    bare = {key: value for key, value in os.environ.items() if not key.startswith(("ATEN_", "MKL_", "ONEDNN_"))}
    found = subprocess.run(
        [sys.executable, "-m", hashes.__module__],
        env=bare | {"OMP_NUM_THREADS": "1"} | SETTINGS[name],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout)


def require_vectors():
    if answer("own")["capability"] == "DEFAULT":
        pytest.skip("this machine has one instruction set only")


@pytest.mark.parametrize("name", ["avx2", "none"])
def test_the_logits_are_the_same_under_another_instruction_set(name):
    require_vectors()
    expected = {"avx2": "AVX2", "none": "DEFAULT"}[name]
    assert answer(name)["capability"] == expected
    assert answer(name)["exact"] == answer("own")["exact"]
    assert answer(name)["ordered"] == answer("own")["ordered"]


def test_fast_gives_other_bits_there_so_the_comparison_can_fail():
    require_vectors()
    assert answer("none")["fast"] != answer("own")["fast"]
