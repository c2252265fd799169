"""From the name of a model to a model in memory, with the digests of its files.

Sources are `bundled:NAME`, `hf:ORG/NAME`, a folder or a GGUF file. Every mistake is a
`ModelError` of one line that names the folder or file and the fix.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.core.errors import ModelError
from engine.core.registry import LOADERS, resolve
from engine.models.decoder.fused_weights import WeightFormat, mapped_weights
from engine.models.files.folder import (
    TOKENIZER_PATTERNS,
    ModelFile,
    ModelFolder,
    bundled_folder,
    model_digest,
    open_folder,
    read_json,
    read_tensors,
    tokenizer_digest,
)
from engine.models.files.gguf_file import GgufFile, ResolvedSource, folder_of
from engine.models.files.tokenizer_trial import TokenizerFile, refusal
from engine.models.files.verified_files import pinned
from engine.models.interface import TargetModel
from engine.models.lean_weights import check_tensors, read_config
from engine.models.numerics.devices import CPU, ask_for_stable_kernels, usable_device
from engine.models.probe.choose import ModelWithNumerics, NumericsFacts, foreign, require_known
from engine.models.probe.model_parts import ModelParts, parts_of

__all__ = [
    *("LoadedModel", "ModelFile", "check_same_tokenizer", "load_model", "load_opened", "load_tokenizer"),
    *("model_digest", "open_source", "require_way", "tokenizer_digest"),
]

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
RESPONSE_TEMPLATE = "response_template.json"
"""How the family writes tool calls, beside a tokenizer that does not say it itself."""
TOKENIZER = "tokenizer.json"
MOST_ID = 2**24
MOST_GROWTH = 1000
HUB_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "additional_chat_templates/*"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and the source of both.

    `resolved` is the resolved source: the folder, also of a GGUF file, `bundled:NAME`, or `hf:ORG/NAME@COMMIT`.
    `tokenizer` is a transformers tokenizer, None if the folder has none. `numerics` is the arithmetic in effect.
    """

    model: TargetModel
    tokenizer: Any | None
    files: tuple[ModelFile, ...]
    source: str
    resolved: str
    numerics: NumericsFacts


@dataclass(frozen=True, slots=True)
class SourceTokenizer:
    """The tokenizer of a source whose weights nobody needs; None if the folder has none."""

    source: str
    tokenizer: Any | None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded: the arguments of `load_model` of the same names."""

    dtype: str
    loader: str
    numerics: str
    device: str
    placed: bool = True


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source whose folder was found and whose files have their digests; and the GGUF file that they come from."""

    source: str
    resolved: str
    folder: ModelFolder
    gguf: GgufFile | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The files' identity."""
        return {
            "source": self.source,
            "resolved": self.resolved if self.source.startswith("hf:") else self.source,
            "model_sha256": model_digest(self.folder.files),
            "tokenizer_sha256": tokenizer_digest(self.folder.files),
            **({} if self.gguf is None else {"gguf_sha256": self.gguf.sha256}),
        }


def load_model(
    source: str,
    *,
    dtype: str = "float32",
    loader: str = "lean",
    revision: str | None = None,
    base: Path | None = None,
    numerics: str = "fast",
    device: str = "cpu",
    placed: bool = True,
) -> LoadedModel:
    """Load a model and its tokenizer.

    Args:
        source: `bundled:NAME`, `hf:ORG/NAME`, a folder, or a GGUF file.
        dtype: float32, float64 or bfloat16.
        loader: `lean` (own forward: llama, qwen2, qwen3) or `hf` (any causal model of transformers).
        revision: branch, tag or commit of an `hf:` source; `resolved` holds the resolved commit.
        base: the base of a relative folder; by default the working directory.
        numerics: a mode of `engine.models.numerics.REGISTRY`, or `auto`; probed now. The hf loader has `fast` only.
        device: where the weights live, as torch calls it; the hf loader has `cpu` only.
        placed: tokens will be placed and taken back at will; false for a network of the hf loader that only runs over
            whole texts or by transformers' own loops, which may then keep any state.

    Raises:
        ModelError: the model cannot be loaded completely.
        InvalidRequest: an unknown numerics mode, or one that this loader lacks.
        NumericsRefused: a mode that was requested by name and does not hold on this machine.
    """
    way = LoadOptions(dtype, loader, numerics, device, placed)
    require_way(source, way)
    return load_opened(open_source(source, revision, base), way)


def require_way(source: str, way: LoadOptions) -> None:
    """Refuse a dtype, loader, arithmetic or device that does not exist or cannot be used together.

    Raises:
        ModelError: the first such argument.
    """
    if way.dtype not in DTYPES:
        raise ModelError(f"{source}: dtype {way.dtype!r} is not one of {', '.join(DTYPES)}")
    if way.loader not in LOADERS:
        raise ModelError(f"{source}: loader {way.loader!r} is not one of {', '.join(LOADERS)}")
    require_known(way.numerics, source)
    if way.loader == "hf" and way.device != "cpu":
        raise ModelError(f"{source}: loader hf runs on the cpu only; write loader: lean, or device: cpu")
    ask_for_stable_kernels(usable_device(way.device, source))


def open_source(source: str, revision: str | None = None, base: Path | None = None) -> OpenedSource:
    """Find a source's files and digest them; no weight is read.

    Raises:
        ModelError: the source does not exist, or its files are incomplete.
    """
    place = _find(source, revision, base)
    return OpenedSource(source, place.resolved, open_folder(place.path, source), place.gguf)


def load_opened(opened: OpenedSource, way: LoadOptions) -> LoadedModel:
    """The model and the tokenizer of a folder whose files are known. Raises as `load_model`."""
    with pinned(opened.folder) as folder:
        return _loaded(opened, folder, way)


def _loaded(opened: OpenedSource, folder: ModelFolder, way: LoadOptions) -> LoadedModel:
    facts = {
        **opened.facts,
        "architecture": folder.config.get("model_type"),
        "dtype": way.dtype,
        "loader": way.loader,
        "device": way.device,
    }
    ready = _equip(folder, facts, way)
    return LoadedModel(
        ready.model, load_tokenizer(folder), folder.files, opened.source, opened.resolved, numerics=ready.numerics
    )


def _equip(folder: ModelFolder, facts: Mapping[str, Any], way: LoadOptions) -> ModelWithNumerics:
    """The model by its loader; transformers' own arithmetic cannot be chosen."""
    load, dtype = resolve(LOADERS, way.loader, "loader"), DTYPES[way.dtype]
    if way.loader == "hf":
        chosen = foreign(way.numerics, folder.name())
        model: TargetModel = load(folder, dtype, facts, placed=way.placed)
        return ModelWithNumerics(model, chosen)
    ready: ModelWithNumerics = load(folder, dtype, facts, way.numerics)
    return ready


def load_parts(source: str, *, dtype: str = "float32", base: Path | None = None) -> ModelParts:
    """The parts of a model that a probe needs: read and checked, but not ready to run.

    Raises:
        ModelError: a model that cannot be read, or that the lean forward does not have.
    """
    with pinned(open_folder(_find(source, None, base).path, source)) as folder:
        config = read_config(folder.config, folder.name("config.json"))
        tensors = read_tensors(folder)
        check_tensors(config, tensors, folder.name())
        kind = WeightFormat(DTYPES[dtype], CPU)
        return parts_of(config, mapped_weights(config, tensors, kind, folder.name()))


def _find(source: str, revision: str | None, base: Path | None) -> ResolvedSource:
    if not source.isprintable():
        raise ModelError(f"{source!r}: a source is one line; give bundled:NAME, hf:ORG/NAME, a folder or a .gguf file")
    kind, _, name = source.partition(":")
    if kind == "hf":
        return _download(source, name, revision)
    if revision is not None:
        raise ModelError(f"{source}: revision applies to hf: sources only; remove it")
    if kind == "bundled":
        return ResolvedSource(bundled_folder(source), source)
    if not source:
        raise ModelError("a model's source is empty; give bundled:NAME, hf:ORG/NAME, a folder or a .gguf file")
    try:
        path = ((base or Path()) / Path(source).expanduser()).resolve()
        path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"{source}: not a path ({_one_line(error)}); give the path of a folder") from error
    return folder_of(path, source)


def _download(source: str, name: str, revision: str | None) -> ResolvedSource:
    """Fetch a snapshot, or find it in the local cache."""
    import huggingface_hub
    from huggingface_hub import errors

    organisation, _, model = name.partition("/")
    if not organisation or not model or "/" in model:
        raise ModelError(f"{source}: an hf: source is hf:ORG/NAME")
    asked = f"{source} at {revision or 'main'}"
    try:
        path = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=HUB_PATTERNS)
    except errors.RepositoryNotFoundError as error:
        raise ModelError(f"{source}: no such model, or it needs a login (hf auth login)") from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{asked}: no such revision; give a branch, tag or commit of that model") from error
    except errors.LocalEntryNotFoundError as error:
        raise ModelError(f"{asked}: not in the local cache and the hub cannot be reached; download it first") from error
    except errors.HFValidationError as error:
        raise ModelError(f"{source}: not a name that the hub allows ({_one_line(error)})") from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise ModelError(f"{asked}: download failed ({_one_line(error)}); try again or use a folder") from error
    # A snapshot's folder is named after the commit of the revision.
    return ResolvedSource(Path(path), f"{source}@{Path(path).name}")


def load_tokenizer(folder: ModelFolder) -> Any | None:
    """The folder's tokenizer; None if it has no tokenizer file.

    Raises:
        ModelError: transformers cannot read the tokenizer files, or what they say asks for too much memory.
    """
    if not any(Path(file.name).match(pattern) for file in folder.files for pattern in TOKENIZER_PATTERNS):
        return None
    _require_bounded(read_json(folder.path / TOKENIZER, folder.name(TOKENIZER)) or {}, folder.name(TOKENIZER))
    _require_tried(folder)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder.path), local_files_only=True)
    except Exception as error:  # transformers passes on its parsers' exceptions
        raise ModelError(
            f"{folder.label}: the tokenizer cannot be read ({_one_line(error, folder)}); restore tokenizer.json"
        ) from error
    if getattr(tokenizer, "response_template", None) is None:
        tokenizer.response_template = read_json(folder.path / RESPONSE_TEMPLATE, folder.name(RESPONSE_TEMPLATE))
    return tokenizer


def _require_bounded(document: Mapping[str, Any], where: str) -> None:
    """Refuse what makes the tokenizer's library ask for gigabytes: a huge id, or rules each of which grows the text."""
    parts = list(_mappings(document))
    ids = (number for part in parts for number in (part.get("id"), *_values(part.get("vocab"))))
    beyond = next((number for number in ids if isinstance(number, int) and not 0 <= number < MOST_ID), None)
    if beyond is not None:
        raise ModelError(f"{where}: the token id {beyond} is not from 0 to {MOST_ID - 1}; restore the file")
    growth = math.prod(_growth(part) for part in parts if part.get("type") == "Replace")
    if growth > MOST_GROWTH:
        raise ModelError(f"{where}: its rules make a text {growth:.0f} times as long; restore the file")


def _require_tried(folder: ModelFolder) -> None:
    """Refuse a tokenizer that breaks a limit of its trial, or fails there in a way that no exception tells."""
    file = next((file for file in folder.files if file.name == TOKENIZER), None)
    if file is None or folder.label.startswith("bundled:"):
        return
    problem = refusal(TokenizerFile(file.sha256, file.size, folder.path / TOKENIZER))
    if problem is not None:
        raise ModelError(f"{folder.name(TOKENIZER)}: it {problem}; restore the file")


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """The objects in a document; a vocabulary is none."""
    if isinstance(value, list):
        # a list of merges is long and has no objects
        yield from (part for item in value if isinstance(item, dict | list) for part in _mappings(item))
    elif isinstance(value, dict):
        yield value
        yield from (part for key, item in value.items() if key not in ("vocab", "merges") for part in _mappings(item))


def _values(vocabulary: Any) -> Iterable[Any]:
    return vocabulary.values() if isinstance(vocabulary, dict) else ()


def _growth(rule: Mapping[str, Any]) -> float:
    pattern = rule.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, len(str(rule.get("content"))) / max(1, len(replaced) if isinstance(replaced, str) else 1))


def _one_line(error: BaseException, folder: ModelFolder | None = None) -> str:
    text = str(error) if folder is None else str(error).replace(str(folder.path), folder.label)
    return " ".join(text.split())[:200] or type(error).__name__


def check_same_tokenizer(target: LoadedModel | SourceTokenizer, draft: LoadedModel | SourceTokenizer) -> None:
    """Require that a token id means the same text for both: compares token-to-id maps and merges, not sizes.

    The number of logits may still differ, where one model pads its vocabulary.

    Raises:
        ModelError: a tokenizer is missing, or names the first difference.
    """
    where = f"{draft.source} cannot draft for {target.source}"
    for item in (target, draft):
        if item.tokenizer is None:
            raise ModelError(f"{where}: {item.source} has no tokenizer files; add tokenizer.json")
    difference = _vocabulary_difference(target.tokenizer, draft.tokenizer) or _merge_difference(
        target.tokenizer, draft.tokenizer
    )
    if difference:
        raise ModelError(f"{where}: {difference}; use a draft with the target's tokenizer")


def _vocabulary_difference(target: Any, draft: Any) -> str | None:
    ours, theirs = ({id_: token for token, id_ in item.get_vocab().items()} for item in (target, draft))
    for id_ in sorted(ours.keys() | theirs.keys()):
        if ours.get(id_) != theirs.get(id_):
            return f"token {id_} is {ours.get(id_)!r} in the target and {theirs.get(id_)!r} in the draft"
    return None


def _merge_difference(target: Any, draft: Any) -> str | None:
    ours, theirs = _merges(target), _merges(draft)
    for rank in range(max(len(ours), len(theirs))):
        a, b = (item[rank] if rank < len(item) else None for item in (ours, theirs))
        if a != b:
            return f"merge {rank} is {a!r} in the target and {b!r} in the draft"
    return None


def _merges(tokenizer: Any) -> list[Any]:
    """The ranked merges of a byte-pair tokenizer; empty for other kinds."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return [] if backend is None else list(json.loads(backend.to_str())["model"].get("merges") or [])
