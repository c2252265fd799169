"""Model folders: a tiny one with odd documents and odd bytes, loaded by our own forward."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from engine.core.errors import EngineError
from engine.heads.loading import load_model_or_head
from engine.models.lean_weights import expected_shapes, read_config
from engine.models.loading import LoadOptions
from tests.fuzz.contract import Violation
from tests.fuzz.edits import Edit, as_text, edited_bytes
from tests.fuzz.fixtures import Fixtures

CONFIG: Final[dict[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "eos_token_id": [2],
    "hidden_act": "silu",
    "layer_types": ["full_attention"],
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "tie_word_embeddings": False,
}
INDEX: Final = "model.safetensors.index.json"
TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json")


def load_odd(fixtures: Fixtures, folder: Path, edits: tuple[Edit, ...]) -> Violation | None:
    """Load a folder one of whose files is odd; a refusal takes one line."""
    home = folder / "model"
    home.mkdir()
    shapes = expected_shapes(read_config(CONFIG, "config.json"))
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    save_file(tensors, home / "model.safetensors", {"format": "pt"})
    (home / "config.json").write_text(json.dumps(CONFIG))
    _make_odd(fixtures, home, edits, dict.fromkeys(shapes, "model.safetensors"))
    try:
        load_model_or_head(str(home), LoadOptions("float32", "lean", "fast", "cpu"), None, None)
    except EngineError as error:
        text = str(error)
        return None if text.isprintable() else Violation(f"not one line: {text[:300]!r}")
    return None


def _make_odd(fixtures: Fixtures, home: Path, edits: tuple[Edit, ...], places: dict[str, str]) -> None:
    which = edits[0].at % 10
    if which < 6:
        (home / "config.json").write_bytes(as_text(CONFIG, edits))
    elif which == 6:
        (home / INDEX).write_bytes(as_text({"metadata": {}, "weight_map": places}, edits))
    elif which == 7:
        path = home / "model.safetensors"
        path.write_bytes(edited_bytes(path.read_bytes(), edits))
    elif which == 8:
        (home / "generation_config.json").write_bytes(as_text({"eos_token_id": [2], "pad_token_id": 0}, edits))
    else:
        for name in TOKENIZER:
            shutil.copy(fixtures.model / name, home / name)
        odd = home / TOKENIZER[edits[0].to % 2]
        document = json.loads(odd.read_bytes())
        odd.write_bytes(as_text(document, edits))
