"""Loads a model folder by transformers, whole or not at all.

Transformers makes up the tensors that the files lack before it reports them, so a small folder could ask for any amount
of time and memory: what it builds from a config.json is bounded by what the weight files hold. Cannot bound: sizes in
fields of families that this engine does not know.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import logging

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


def load_whole(folder: ModelFolder, auto: Any, dtype: torch.dtype, words: str) -> Any:
    """The network in a folder as the class `auto` of transformers reads it; code from the folder is never run.

    `dtype` is that of the network in memory, `words` say what the folder must hold, for messages.

    Raises:
        ModelError: transformers cannot load it, or would leave out tensors or make some up.
    """
    require_sizes(folder)
    try:
        with _quiet():
            network, report = auto.from_pretrained(
                str(folder.path),
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # refused below, by name
                output_loading_info=True,
            )
    except Exception as error:  # transformers passes on its parsers' exceptions
        reason = " ".join(str(error).replace(str(folder.path), folder.label).split())[:200]
        raise ModelError(f"{folder.label}: transformers cannot load it as a {words} ({reason})") from error
    _require_whole(report, type(network).__name__, folder.label)
    # transformers reads more from there later, such as the modules of multi-token prediction
    network.name_or_path = network.config._name_or_path = str(folder.origin or folder.path)
    return network


def _require_whole(report: Mapping[str, Any], kind: str, label: str) -> None:
    """Refuse tensors that transformers would initialise at random or ignore with only a warning."""
    for name in sorted(report["missing_keys"]):
        raise ModelError(f"{label}: tensor {name} is missing for {kind}; restore the weights")
    for name in sorted(report["unexpected_keys"]):
        raise ModelError(f"{label}: tensor {name} is unexpected for {kind}; restore the weights or config.json")
    for name, stored, asked in sorted(report["mismatched_keys"]):
        raise ModelError(f"{label}: tensor {name} has shape {list(stored)}, config.json asks for {list(asked)}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bar and load report of transformers; relevant findings are raised."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def require_sizes(folder: ModelFolder) -> None:
    """Refuse more layers than there are tensors, and matrices with more numbers than the files can hold.

    Raises:
        ModelError: names the fields.
    """
    config: Mapping[str, Any] = folder.config.get("text_config") or folder.config
    tensors, where = _tensors(folder), folder.name("config.json")
    room = BITS * sum(file.size for file in folder.files if file.name.endswith(".safetensors"))
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
