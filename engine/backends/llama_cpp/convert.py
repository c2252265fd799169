"""Models for llama.cpp: GGUF files by `build`, in float32, and the models that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.llama_cpp.settings import PROGRAM
from engine.backends.llama_cpp.vocabulary import vocabulary_of
from engine.backends.process.convert import ModelConverter, paths_of, require_known
from engine.core.errors import ModelError
from engine.models.loading import OpenedSource

MODEL: Final = "model.gguf"
MOST_ENDS: Final = 3
"""A GGUF file names three tokens that end an answer: of a text, of a turn, of a message."""


def require_convertible(opened: OpenedSource) -> None:
    """Refuse a model or a tokenizer that the converter does not know.

    Raises:
        ModelError: as said.
    """
    require_known(opened, "gguf")
    folder = opened.folder
    problem = beyond_gguf(folder.config)
    if problem is not None:
        raise ModelError(f"{folder.name('config.json')}: the converter to gguf {problem}; use another model")
    if len(folder.eos_ids) > MOST_ENDS:
        raise ModelError(f"{folder.name()}: {len(folder.eos_ids)} end tokens, but a GGUF file names {MOST_ENDS}")
    try:
        vocabulary_of(folder.path, folder.config["vocab_size"])
    except ModelError as error:
        raise ModelError(folder.name(str(error))) from error


def beyond_gguf(config: Mapping[str, Any]) -> str | None:
    """The key that a llama GGUF file lacks."""
    biased = [key for key in ("attention_bias", "mlp_bias") if config.get(key)]
    return f"knows no {biased[0]}" if biased else None


CONVERTER: Final = ModelConverter(
    kind="gguf",
    program=PROGRAM,
    module="engine.backends.llama_cpp.build",
    arguments=paths_of,
    result=MODEL,
    packages=("gguf", "numpy"),
    require=require_convertible,
    ours=True,
    backend="llama_cpp",
)
