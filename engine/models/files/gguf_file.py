"""A GGUF file as a model folder in float32, written once to the user's cache under the SHA-256 of the file.

Reads llama, qwen2 and qwen3. transformers reads more of them, but fills up what a file lacks and skips what it does not
know: the frequencies of Llama 3.1, the way to split digits, whole words before merges, the token that begins a text.
Here an unknown tensor or field is an error.
"""

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.core.errors import ModelError
from engine.models.files.folder import SINGLE, changed, digest_file, is_gguf
from engine.models.files.gguf_format import halves, published_name

VERSION: Final = 1
"""Of the conversion; another one does not take the folders of this one."""
FAMILIES: Final = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
SIZES: Final = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
OPTIONAL: Final = {
    *("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "vocab_size"),
}
SLOWED: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Llama 3.1 and later; a file holds what follows from it and from a factor, `ROPE` [head_dim / 2]."""
ROPE: Final = "rope_freqs.weight"
ENDS: Final = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> "
    "<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] "
    "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>".split()
)
"""Tokens at which llama.cpp ends an answer by their names, whatever the file states."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file and its SHA-256."""

    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A model folder that was found on disk, its name in full, and the GGUF file that it comes from, if any."""

    path: Path
    resolved: str
    gguf: GgufFile | None = None


def folder_of(file: Path, source: str) -> ResolvedSource:
    """The folder of a GGUF file, written now if the cache has none, or any other path itself.

    `source` is the path as messages name it.

    Raises:
        ModelError: the file cannot be read, or holds a model of another kind; the cache stays as it was.
    """
    if not is_gguf(file):
        return ResolvedSource(file, str(file))
    digest = digest_file(file.parent, file.name, str(file.parent))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specaudit" / f"gguf-{VERSION}"
    folder = cache / digest.sha256
    if not folder.is_dir():
        note = f"{source}: writing its weights in float32, once, to {folder}"
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=cache) as scratch:
                _write(file, Path(scratch, "model"), source, note)
                if digest_file(file.parent, file.name, str(file.parent)) != digest:
                    raise changed(source)
                Path(scratch, "model").rename(folder)
        except OSError as error:
            # unless another process was faster
            if not folder.is_dir():
                raise ModelError(f"{source}: {cache}: {error.strerror}; make room, or set XDG_CACHE_HOME") from error
    return ResolvedSource(folder, str(folder), GgufFile(file, digest.sha256))


def _write(file: Path, folder: Path, source: str, note: str) -> None:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ModelError(f"{source}: GGUF files need {error.name}; pip install 'specaudit[gguf]'") from error
    folder.mkdir()
    try:
        reader = gguf.GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        _write_model(fields, {item.name: item for item in reader.tensors}, folder, note)
    except OSError:
        raise
    except Exception as error:  # the package passes on whatever a broken file makes of its parser
        known = isinstance(error, ModelError)
        reason = str(error) if known else f"not a readable GGUF file ({type(error).__name__}: {error})"
        raise ModelError(
            f"{source}: {' '.join(reason.split())[:300]}; serve it with llama.cpp and audit the server: audit probe URL"
        ) from error


def _write_model(fields: Mapping[str, Any], stored: dict[str, Any], folder: Path, note: str) -> None:
    slowed = stored.pop(ROPE, None)
    config = _config(fields, tied="output.weight" not in stored)
    if slowed is not None:
        config["rope_parameters"] = _slowed(_plain(slowed), config)
    _require_whole(stored, config)
    # imported late: whoever compares a folder's digest needs neither
    from safetensors.numpy import save_file

    from engine.models.files.gguf_tokenizer import write_tokenizer

    if fields.get("tokenizer.ggml.model") != "no_vocab":
        write_tokenizer(fields, folder)
    tokens = fields.get("tokenizer.ggml.tokens", [])
    stated = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = [*(at for at in stated if at is not None), *(at for at, token in enumerate(tokens) if token in ENDS)]
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": list(dict.fromkeys(ends)) or None}
    for name, document in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", "utf-8")
    # the package has no other way to a terminal; the command line shows what this logger has to say
    logging.getLogger("engine").warning(note)
    names = {published_name(name): item for name, item in stored.items()}
    weights = {name: np.ascontiguousarray(halves(name, _plain(item), config)) for name, item in names.items()}
    save_file(weights, folder / SINGLE, {"format": "pt"})


def _config(fields: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    family = fields["general.architecture"]
    if family not in FAMILIES:
        raise ModelError(f"architecture {family}, where only {', '.join(FAMILIES)} are read")
    own = {name.partition(".")[2]: value for name, value in fields.items() if name.partition(".")[0] == family}
    unknown = sorted(own.keys() - SIZES.keys() - OPTIONAL)
    if unknown:
        raise ModelError(f"the field {family}.{unknown[0]} is not known")
    sizes = {ours: own[theirs] for theirs, ours in SIZES.items()}
    heads = sizes["num_attention_heads"]
    lengths = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    per_head: set[int] = {own[name] for name in lengths if name in own} or {sizes["hidden_size"] // heads}
    if len(per_head) > 1:
        raise ModelError(f"heads of different sizes, {', '.join(map(str, sorted(per_head)))}, are not known")
    return {
        **sizes,
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "num_key_value_heads": own.get("attention.head_count_kv", heads),
        "head_dim": per_head.pop(),
        # the file has it in float32; these are the digits that were meant
        "rms_norm_eps": float(str(np.float32(own["attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(own.get("rope.freq_base", 10000.0))},
        "vocab_size": own.get("vocab_size") or len(fields["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "dtype": "float32",
        **{f"{name}_token_id": fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")},
    }


def _plain(stored: Any) -> np.ndarray:
    """A tensor in float32, [rows, columns] as transformers has it."""
    from gguf.quants import dequantize

    return np.ascontiguousarray(dequantize(stored.data, stored.tensor_type), np.float32)


def _slowed(divisors: np.ndarray, config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary parameters whose frequencies are the plain ones divided by `divisors` [head_dim / 2]."""
    from engine.models.numerics.rotations import frequencies

    plain = config["rope_parameters"]
    rope = {**plain, **SLOWED, "rope_type": "llama3", "factor": float(divisors.max())}
    before, after = (np.array(frequencies(config["head_dim"], item)) for item in (plain, rope))
    wanted = before / after
    if divisors.shape != wanted.shape or not np.allclose(divisors, wanted, rtol=1e-5):
        raise ModelError(f"the frequencies {ROPE} are not those of Llama 3")
    return rope


def _require_whole(stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse a file that lacks a tensor of the model, or has another one."""
    # imported late: a folder that is there needs no torch
    from engine.models.lean_weights import expected_shapes, read_config

    expected = expected_shapes(read_config(config, "its configuration"))
    actual = {published_name(name): tuple(int(n) for n in item.shape[::-1]) for name, item in stored.items()}
    odd = sorted(name for name in {*expected, *actual} if expected.get(name) != actual.get(name))
    if odd:
        shapes = (list(known.get(odd[0], ())) or "none" for known in (actual, expected))
        raise ModelError("tensor {} has shape {}, where the model has {}".format(odd[0], *shapes))
