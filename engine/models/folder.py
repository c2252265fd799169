"""A model folder on disk: its configuration, the digests of its files, its tensors.

Only config.json, safetensors and tokenizer files count; pickled weights are
refused because reading one can run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.core.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CONFIG_PATTERNS = ("config.json", "generation_config.json")
WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json")
TOKENIZER_PATTERNS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template.*",
    "additional_chat_templates/*",
)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: name relative to its folder, SHA-256 in hex, size in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """An opened model folder. `label` is its name in messages."""

    path: Path
    label: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    files: tuple[ModelFile, ...]

    def name(self, file: str = "") -> str:
        """The folder, or a file in it, as messages name it."""
        return f"{self.label}/{file}" if file else self.label

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """End-of-sequence ids: generation_config.json's, else config.json's, else none."""
        for name, document in (("generation_config.json", self.generation), ("config.json", self.config)):
            ids = document.get("eos_token_id")
            if ids is not None:
                several = ids if isinstance(ids, list) else [ids]
                if not all(type(each) is int for each in several):
                    raise ModelError(
                        f"{self.name(name)}: eos_token_id must be a token id or a list of them, not {ids!r}"
                    )
                return tuple(several)
        return ()


def open_folder(path: Path, label: str) -> ModelFolder:
    """Read the configuration of a model folder and digest its files.

    Raises:
        ModelError: no such folder, no config.json, broken JSON, or pickled weights only.
    """
    if not path.is_dir():
        raise ModelError(f"{label}: no such folder; give the path of a folder with config.json and safetensors weights")
    config = read_json(path / "config.json", f"{label}/config.json")
    if config is None:
        raise ModelError(f"{label}: config.json is missing; give the folder that save_pretrained wrote")
    if not any(path.glob("*.safetensors")):
        _refuse_pickles(path, label)
    generation = read_json(path / "generation_config.json", f"{label}/generation_config.json") or {}
    names = _names(path, (*CONFIG_PATTERNS, *WEIGHT_PATTERNS, *TOKENIZER_PATTERNS))
    return ModelFolder(path, label, config, generation, tuple(_digest_file(path, name, label) for name in names))


def read_json(path: Path, where: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file.

    Raises:
        ModelError: the file is not a JSON object.
    """
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{where}: not readable as JSON ({error}); restore the file") from error
    if not isinstance(document, dict):
        raise ModelError(f"{where}: must be a JSON object; restore the file")
    return document


def _refuse_pickles(path: Path, label: str) -> None:
    pickles = _names(path, PICKLES)
    if pickles:
        # transformers writes .bin for its own models; the others are tensors by name, such as medusa_lm_head.pt
        whole = pickles[0].endswith(".bin")
        mend = (
            "model.save_pretrained(FOLDER) in transformers, which writes safetensors"
            if whole
            else f'safetensors.torch.save_file(torch.load("{pickles[0]}", weights_only=True), "{SINGLE}")'
        )
        raise ModelError(
            f"{label}/{pickles[0]}: pickled weights are not read, because that can run code; "
            f"convert them once with {mend}"
        )
    raise ModelError(f"{label}: no weights; it needs {SINGLE} or {INDEX} with its shards")


def _names(path: Path, patterns: tuple[str, ...]) -> list[str]:
    found = {each for pattern in patterns for each in path.glob(pattern) if each.is_file()}
    return sorted(each.relative_to(path).as_posix() for each in found)


def _digest_file(path: Path, name: str, label: str) -> ModelFile:
    try:
        with (path / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{label}/{name}: not readable ({error.strerror}); check the file's permissions") from error
    return ModelFile(name, digest, (path / name).stat().st_size)


def model_digest(files: tuple[ModelFile, ...]) -> str:
    """One SHA-256 (hex) over all bytes of configuration and weights."""
    return _digest(files, (*CONFIG_PATTERNS, *WEIGHT_PATTERNS))


def tokenizer_digest(files: tuple[ModelFile, ...]) -> str:
    """One SHA-256 (hex) over the tokenizer files, chat template included."""
    return _digest(files, TOKENIZER_PATTERNS)


def digest_of_tokenizer(path: Path, label: str) -> str:
    """`tokenizer_digest` of a folder, without reading its weights.

    Raises:
        ModelError: a file cannot be read.
    """
    return tokenizer_digest(tuple(_digest_file(path, name, label) for name in _names(path, TOKENIZER_PATTERNS)))


def _digest(files: tuple[ModelFile, ...], patterns: tuple[str, ...]) -> str:
    """SHA-256 over the lines `sha256  name`, sorted by name, as sha256sum prints them."""
    chosen = [each for each in files if any(Path(each.name).match(pattern) for pattern in patterns)]
    lines = [f"{each.sha256}  {each.name}\n" for each in sorted(chosen, key=lambda file: file.name)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_tensors(folder: ModelFolder) -> dict[str, Tensor]:
    """Every tensor of the folder's checkpoint by name; large ones may be views of the mapped files.

    Raises:
        ModelError: a shard is missing, broken, or at odds with the index; names file and tensor.
    """
    index = read_json(folder.path / INDEX, folder.name(INDEX))
    if index is None:
        if not (folder.path / SINGLE).is_file():
            raise ModelError(f"{folder.label}: no {SINGLE} and no {INDEX}; rename the weights or add the index")
        return _read_file(folder, SINGLE)
    places = index.get("weight_map")
    if not isinstance(places, dict):
        raise ModelError(f"{folder.name(INDEX)}: weight_map is missing; restore the file")
    return _read_shards(folder, places)


def _read_shards(folder: ModelFolder, places: Mapping[str, str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(places.values())):
        content = _read_file(folder, shard)
        for name in content:
            if places.get(name) != shard:
                raise ModelError(f"{folder.name(shard)}: tensor {name} is here but {INDEX} does not list it")
        tensors |= content
    absent = sorted(set(places) - set(tensors))
    if absent:
        raise ModelError(
            f"{folder.name(places[absent[0]])}: tensor {absent[0]} is missing though {INDEX} places it here"
        )
    return tensors


def _read_file(folder: ModelFolder, name: str) -> dict[str, Tensor]:
    if Path(name).name != name or not (folder.path / name).is_file():
        raise ModelError(f"{folder.name(name)}: no such file though {INDEX} names it; download the folder again")
    try:
        with safe_open(folder.path / name, framework="pt") as stream:
            return {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{folder.name(name)}: not readable as safetensors ({error}); download it again") from error
