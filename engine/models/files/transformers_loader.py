"""Loads a model folder by transformers, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers.utils import logging

from engine.core.errors import ModelError
from engine.models.files.folder import ModelFolder
from engine.models.files.sizes import require_sizes


def load_whole(folder: ModelFolder, auto: Any, dtype: torch.dtype, words: str) -> Any:
    """The network in a folder as the class `auto` of transformers reads it; code from the folder is never run.

    Args:
        folder: the model.
        auto: one of transformers' Auto classes.
        dtype: of the network in memory.
        words: what the folder must hold, for messages.

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
