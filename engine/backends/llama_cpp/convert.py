"""Models for llama.cpp: GGUF files by `build`, in float32, and the models and tokenizers that it does not know.

Suites send token ids, so llama.cpp's own tokenizer matters to prompts of text only; it must still be the folder's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.backends.llama_cpp.settings import PROGRAM
from engine.backends.process.convert import ModelConverter, paths_of, require_known
from engine.core.errors import ModelError
from engine.models.files.gguf_format import CONTROL, NORMAL, SPLITS, UNUSED, USER_DEFINED
from engine.models.loading import OpenedSource

MODEL: Final = "model.gguf"
MOST_ENDS: Final = 3
"""A GGUF file names three tokens that end an answer: of a text, of a turn, of a message."""


def require_convertible(opened: OpenedSource) -> None:
    """Refuse a model or a tokenizer that the converter does not know. Raises ModelError."""
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


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokens [V] by id with their kinds [V], the merges, and llama.cpp's name of the way to split a text.

    begins: a prompt of text starts with the token that begins one.
    """

    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    merges: tuple[str, ...]
    split: str
    begins: bool


def vocabulary_of(folder: Path, size: int) -> GgufVocabulary | None:
    """The vocabulary of a folder, padded to the `size` of the logits; None without a tokenizer.

    Raises:
        ModelError: a tokenizer that llama.cpp does not have.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    document = json.loads(path.read_text("utf-8"))
    model = document["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise ModelError(f"{path.name}: the converter to gguf knows byte-level BPE tokenizers only; use another model")
    tokens, kinds = [f"[unused{at}]" for at in range(size)], [UNUSED] * size
    for token, at in model["vocab"].items():
        tokens[at], kinds[at] = token, NORMAL
    for added in document.get("added_tokens", ()):
        tokens[added["id"]], kinds[added["id"]] = added["content"], CONTROL if added["special"] else USER_DEFINED
    merges = tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    split = _split(document.get("pre_tokenizer"), merges)
    return GgufVocabulary(tuple(tokens), tuple(kinds), merges, split, _begins(document.get("post_processor")))


def _split(stated: Mapping[str, Any] | None, merges: Sequence[str]) -> str:
    parts = [] if stated is None else stated.get("pretokenizers", [stated])
    kinds = [part["type"] for part in parts]
    if not merges or (kinds == ["ByteLevel"] and parts[0].get("use_regex", True)):
        # without merges every way to split gives the same tokens
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0]["individual_digits"] and parts[1].get("use_regex", True):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and parts[0]["pattern"].get("Regex") in SPLITS:
        return SPLITS[parts[0]["pattern"]["Regex"]]
    raise ModelError(
        f"tokenizer.json: the converter to gguf does not know this pre_tokenizer ({', '.join(kinds) or 'none'}); "
        "use another model"
    )


def _begins(processor: Mapping[str, Any] | None) -> bool:
    steps = [] if processor is None else processor.get("processors", [processor])
    return any("SpecialToken" in step["single"][0] for step in steps if step.get("single"))
