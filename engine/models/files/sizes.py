"""Bounds what transformers builds from a config.json by what the weight files hold.

Transformers makes up the tensors that the files lack before it reports them, so a small folder could ask for any amount
of time and memory. Cannot bound: sizes in fields of families that this engine does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from engine.core.errors import ModelError
from engine.models.files.folder import ModelFolder

LAYERS: Final = ("num_hidden_layers", "n_layer")
WIDTHS: Final = (
    ("vocab_size", "hidden_size"),
    ("hidden_size", "intermediate_size"),
    ("hidden_size", "num_attention_heads", "head_dim"),
    ("vocab_size", "n_embd"),
    ("n_positions", "n_embd"),
)
"""Fields whose product is the size of a matrix."""
BITS: Final = 8
"""Numbers per byte at most: one bit each."""


def require_sizes(folder: ModelFolder) -> None:
    """Refuse more layers than there are tensors, and matrices with more numbers than the files can hold.

    Raises:
        ModelError: names the fields.
    """
    config: Mapping[str, Any] = folder.config.get("text_config") or folder.config
    tensors, room, where = _tensors(folder), _bytes(folder) * BITS, folder.name("config.json")
    for name in LAYERS:
        count = config.get(name) or 0
        if count > tensors:
            raise ModelError(f"{where}: {name} is {count}, but the files hold {tensors} tensors; restore the file")
    for names in WIDTHS:
        if _product(config, names) > room:
            raise ModelError(
                f"{where}: {' x '.join(names)} is more than the files hold, which have {room // BITS} bytes; "
                "restore the file"
            )


def _product(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    product = 1
    for name in names:
        value = config.get(name)
        # a list has one size per layer
        product *= max(value, default=0) if isinstance(value, list) else value or 0
    return product


def _bytes(folder: ModelFolder) -> int:
    return sum(file.size for file in folder.files if file.name.endswith(".safetensors"))


def _tensors(folder: ModelFolder) -> int:
    """The number of tensors in all files; the files' headers say it."""
    count = 0
    for file in folder.files:
        if file.name.endswith(".safetensors"):
            try:
                with safe_open(folder.path / file.name, framework="pt") as stream:
                    count += len(stream.keys())
            except (SafetensorError, OSError) as error:
                where = folder.name(file.name)
                raise ModelError(f"{where}: not readable as safetensors ({error}); download it again") from error
    return count
