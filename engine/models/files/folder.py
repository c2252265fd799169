"""A model folder on disk: its configuration, the digests of its files, its tensors; imports no torch.

Only config.json, safetensors and tokenizer files count; pickled weights are refused because reading one can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.core.errors import ModelError
from engine.models.files.config_fields import check_fields, shortened

if TYPE_CHECKING:
    # readers of digests start in less time without torch
    from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MOST_JSON = 2**26
"""Bytes of a JSON file; the index of the largest published checkpoints has a tenth."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CONFIG_PATTERNS = ("config.json", "generation_config.json")
WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json")
TOKENIZER_PATTERNS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("vocab.txt", "merges.txt", "*.model", "*.tiktoken", "chat_template.*", "additional_chat_templates/*"),
)


@dataclass(frozen=True, slots=True)
class FileState:
    """The system's facts of an open file; another file, or another content, has another state."""

    device: int
    number: int
    size: int
    modified_ns: int
    changed_ns: int


def state_of(handle: int) -> FileState:
    """The state of an open file."""
    status = os.fstat(handle)
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: name relative to its folder, SHA-256 in hex, size in bytes, and its state when digested."""

    name: str
    sha256: str
    size: int
    state: FileState | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """An opened model folder. `label` is its name in messages, `origin` the folder whose open files `path` links to."""

    path: Path
    label: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    files: tuple[ModelFile, ...]
    origin: Path | None = None

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
                if not all(type(item) is int for item in several):
                    raise ModelError(
                        f"{self.name(name)}: eos_token_id must be a token id or a list of them, not {ids!r}"
                    )
                return tuple(several)
        return ()


def is_gguf(path: Path) -> bool:
    """True for a file that `gguf_file` turns into a folder."""
    return path.suffix == ".gguf" and path.is_file()


def open_folder(path: Path, label: str) -> ModelFolder:
    """Read the configuration of a model folder and digest its files.

    Raises:
        ModelError: no such folder, no config.json, broken JSON, or pickled weights only.
    """
    if not path.is_dir():
        raise ModelError(f"{label}: no such folder; give a folder with config.json and safetensors, or a .gguf file")
    files = {name: digest_file(path, name, label) for name in _names(path, CONFIG_PATTERNS, label)}
    config, generation = (_digested_json(path, files.get(name), label) for name in CONFIG_PATTERNS)
    if config is None:
        raise ModelError(f"{label}: config.json is missing; give the folder that save_pretrained wrote")
    check_fields(config, f"{label}/config.json")
    if not any(path.glob("*.safetensors")):
        _refuse_pickles(path, label)
    names = _names(path, (*WEIGHT_PATTERNS, *TOKENIZER_PATTERNS), label)
    files |= {name: digest_file(path, name, label) for name in names}
    return ModelFolder(path, label, config, generation or {}, tuple(files[name] for name in sorted(files)))


def _digested_json(path: Path, file: ModelFile | None, label: str) -> dict[str, Any] | None:
    if file is None:
        return None
    where = f"{label}/{file.name}"
    raw = _read(path / file.name, where)
    if hashlib.sha256(raw).hexdigest() != file.sha256:
        raise changed(where)
    return parse_json(raw, where)


def changed(where: str) -> ModelError:
    """The error of a file that is no longer the one that was digested."""
    return ModelError(f"{where}: changed while it was read; try again when nothing writes to the folder")


def read_json(path: Path, where: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file.

    Raises:
        ModelError: the file is not a JSON object, or too large for one.
    """
    return parse_json(_read(path, where), where) if path.is_file() else None


def _read(path: Path, where: str) -> bytes:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MOST_JSON + 1)
    except OSError as error:
        raise ModelError(f"{where}: not readable ({error.strerror}); check the file's permissions") from error
    if len(raw) > MOST_JSON:
        raise ModelError(f"{where}: larger than {MOST_JSON // 2**20} MiB; restore the file")
    return raw


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object in some bytes. Raises ModelError: they hold none."""
    try:
        document = json.loads(raw.decode("utf-8"))
    except RecursionError as error:
        raise ModelError(f"{where}: not readable as JSON (nested too deep); restore the file") from error
    except ValueError as error:
        raise ModelError(f"{where}: not readable as JSON ({error}); restore the file") from error
    if not isinstance(document, dict):
        raise ModelError(f"{where}: must be a JSON object; restore the file")
    return document


def _refuse_pickles(path: Path, label: str) -> None:
    pickles = _names(path, PICKLES, label)
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


def _names(path: Path, patterns: tuple[str, ...], label: str) -> list[str]:
    files = {file for pattern in patterns for file in path.glob(pattern) if file.is_file()}
    names = sorted(file.relative_to(path).as_posix() for file in files)
    for name in names:
        # a line end in a name could make the lines of two folders equal
        if not name.isprintable():
            raise ModelError(f"{label}: the file name {shortened(name)} has control characters; rename the file")
    return names


def digest_file(path: Path, name: str, label: str) -> ModelFile:
    """The digest of the file `name` in the folder `path`, which messages call `label`.

    Raises:
        ModelError: the file cannot be read, or changed meanwhile.
    """
    try:
        with (path / name).open("rb") as stream:
            state = state_of(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if state_of(stream.fileno()) != state:
                raise changed(f"{label}/{name}")
    except OSError as error:
        raise ModelError(f"{label}/{name}: not readable ({error.strerror}); check the file's permissions") from error
    return ModelFile(name, digest, state.size, state)


def model_digest(files: tuple[ModelFile, ...]) -> str:
    """One SHA-256 (hex) over all bytes of configuration and weights."""
    return _digest(files, (*CONFIG_PATTERNS, *WEIGHT_PATTERNS))


def tokenizer_digest(files: tuple[ModelFile, ...]) -> str:
    """One SHA-256 (hex) over the tokenizer files, chat template included."""
    return _digest(files, TOKENIZER_PATTERNS)


def digest_of_tokenizer(path: Path, label: str) -> str:
    """`tokenizer_digest` of a folder, without reading its weights. Raises ModelError: a file cannot be read."""
    names = _names(path, TOKENIZER_PATTERNS, label)
    return tokenizer_digest(tuple(digest_file(path, name, label) for name in names))


def _digest(files: tuple[ModelFile, ...], patterns: tuple[str, ...]) -> str:
    """SHA-256 over the lines `sha256  name`, sorted by name, as sha256sum prints them."""
    chosen = [file for file in files if any(Path(file.name).match(pattern) for pattern in patterns)]
    lines = [f"{item.sha256}  {item.name}\n" for item in sorted(chosen, key=lambda file: file.name)]
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
    for name, shard in places.items():
        if not isinstance(shard, str) or not shard.isprintable():
            raise ModelError(
                f"{folder.name(INDEX)}: weight_map places {shortened(name)} in {shortened(shard)}, which is no file's "
                "name; restore the file"
            )
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
    # imported late: digests of a folder need no reader of weights
    from safetensors import SafetensorError, safe_open

    if name not in {path.name for path in folder.path.iterdir() if path.is_file()}:
        raise ModelError(f"{folder.name(name)}: no such file though {INDEX} names it; download the folder again")
    try:
        with safe_open(folder.path / name, framework="pt") as stream:
            return {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{folder.name(name)}: not readable as safetensors ({error}); download it again") from error


def bundled_folder(source: str) -> Path:
    """The folder of `bundled:NAME`. Raises ModelError: there is no such model."""
    name, home = source.partition(":")[2], Path(str(files("engine"))) / "bundled"
    known = sorted(path.parent.name for path in home.glob("*/config.json"))
    if name not in known:
        raise ModelError(
            f"{source}: no such bundled model; there are: {', '.join(known) or 'none in this installation'}"
        )
    return home / name
