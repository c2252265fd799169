"""The packaged prompts are what their generator gives, and the long ones are long."""

import json
from pathlib import Path

import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.interface import Prompt
from engine.backends.local_target import LocalTarget
from engine.train.prompts import context_rows, long_rows, write_prompts

PACKAGED = Path(__file__).parents[3] / "suites" / "prompts"


@pytest.mark.parametrize(
    "domain", ["chat", "code", "copy", "json", "long", "safety", "tools", "tool_calls", "tool_choices", "contexts"]
)
def test_packaged_prompts_are_generated(tmp_path, domain):
    write_prompts(tmp_path, 50)
    name = f"{domain}.jsonl"
    assert (PACKAGED / name).read_text(encoding="utf-8") == (tmp_path / name).read_text(encoding="utf-8")


def test_long_prompts_fill_most_of_a_context_and_ask_something_last():
    target = LocalTarget(ModelSource("bundled:target"))
    for row in long_rows(8):
        assert row["messages"][-1]["role"] == "user"
        assert 400 <= len(target.tokens.encode(Prompt(tuple(row["messages"])))) <= 640
    assert len({json.dumps(row) for row in long_rows(8)}) == 8


def test_contexts_spread_up_to_the_maximum():
    target = LocalTarget(ModelSource("bundled:target"))
    lengths = [len(target.tokens.encode(Prompt(tuple(row["messages"])))) for row in context_rows()]
    assert len(lengths) >= 100
    # 32 tokens of an answer fit behind the longest prompt, and end within 16 tokens of the maximum of 1024
    assert 1024 - 32 - 16 <= max(lengths) <= 1024 - 32
    for border in (0, 64, 128, 256, 512):
        assert sum(border <= length < max(64, 2 * border) for length in lengths) >= 7, border
