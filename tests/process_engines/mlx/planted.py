"""An interpreter whose mlx_lm has a planted fault: the library's own source with one line changed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.process_engines.planted import interpreter_with

PATCH: Final = """
import importlib, inspect, os, random, sys
sys.path.remove(os.path.dirname(__file__))
library = importlib.import_module("mlx_lm.generate")
source = inspect.getsource(library.speculative_generate_step)
changed = source.replace({old!r}, {new!r})
assert changed != source, "the library has no such line"
library.random = random.Random(0)
exec(compile(changed, "planted", "exec"), vars(library))
"""
LEAK: Final = (
    "tn, dtn, lpn = tokens[n], draft_tokens[n], logprobs[n]",
    "tn, dtn, lpn = tokens[n], draft_tokens[n], logprobs[n]\n"
    "                    tn = tokens[n] = dtn if random.random() < 0.1 else tn",
)
"""One refused draft in ten is accepted, and given as the target's own token."""
STALE_CACHE: Final = ("trim_prompt_cache(model_cache, num_draft - num_accept)", "pass")
"""The target's cache keeps refused drafts."""


def planted(folder: Path, python: str, change: tuple[str, str]) -> str:
    """The path of an interpreter with the change in its mlx_lm; `folder` is new."""
    return interpreter_with(folder, python, PATCH.format(old=change[0], new=change[1]))
