"""The exactly known law of Markov chains in llama.cpp: kept by every way of speculating, and a planted leak found."""

import pytest

from audit.selftest.engines import ControlSize, controls_of
from engine.backends.llama_cpp.convert import CONVERTER

pytestmark = pytest.mark.llama
LEAK = 0.05
SIZE = ControlSize(12, 1500, LEAK)


def test_a_sound_engine_keeps_the_law_and_a_planted_leak_is_found(tmp_path):
    results = list(controls_of(CONVERTER, tmp_path, SIZE))
    for result in results:
        print(*result.row(), f"{result.judged.needed(0.02)} tokens find a leak of 2 % with probability 0.9")
    assert {result.arm for result in results} == {"plain", "draft_model", "drawn_drafts", "ngram_simple"}
    assert [result.row() for result in results if not result.right] == []
    assert all(result.judged.needed(LEAK) < result.judged.tokens for result in results)
