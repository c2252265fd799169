"""Models for onnxruntime-genai, by its own builder, with a manifest that ties the result to its source.

The builder runs in the engine's Python. The manifest `conversion.json` holds SHA-256 digests of the source's and of
the result's files, the versions, and the rounding: float32 holds every float32, bfloat16 and float16 weight exactly.
Cannot see: an error of the builder itself; `audit run` compares the converted model with a reference pass.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.core.errors import ModelError
from engine.models.loading import OpenedSource

MANIFEST: Final = "conversion.json"
VERSION: Final = 1
BUILDER: Final = "onnxruntime_genai.models.builder"
PACKAGES: Final = ("onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir", "torch", "transformers")
ROUNDING: Final = "none: float32 holds every weight of the source"
FAMILY: Final = 16
"""The engine's attention needs a head size that this divides."""
_VERSIONS: Final = (
    "import json, sys; from importlib.metadata import version; "
    "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
)


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted model: its folder, the digest of its source, and the digest of its own files."""

    folder: Path
    source_sha256: str
    sha256: str
    manifest: Mapping[str, Any]


def head_size(config: Mapping[str, Any]) -> int | None:
    """The size of an attention head; None if the configuration does not give it."""
    stated, hidden, heads = (config.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if isinstance(stated, int):
        return stated
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None


def require_convertible(opened: OpenedSource) -> None:
    """Refuse a model that the engine cannot run.

    Raises:
        ModelError: as said.
    """
    size = head_size(opened.folder.config)
    if size is not None and size % FAMILY:
        raise ModelError(
            f"{opened.folder.name('config.json')}: head size {size} is not a multiple of {FAMILY}, which the attention "
            "of onnxruntime-genai needs; use another model, such as bundled:medium_draft"
        )


def convert(opened: OpenedSource, python: str, out: Path) -> Converted:
    """Convert a model into the new folder `out`.

    Raises:
        ModelError: the engine cannot run the model, or its builder refuses it; nothing is left behind.
    """
    require_convertible(opened)
    scratch = out.with_name(f".{out.name}.converting")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        _build(opened, python, scratch / "model", scratch / "cache")
        manifest = {
            "version": VERSION,
            "to": "onnx",
            "source": {**opened.facts, "files": {file.name: file.sha256 for file in opened.folder.files}},
            "result": {"files": digests(scratch / "model")},
            "precision": "fp32",
            "rounding": ROUNDING,
            "packages": _versions(python),
        }
        (scratch / "model" / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", "utf-8")
        (scratch / "model").rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return read_converted(out)


def _build(opened: OpenedSource, python: str, folder: Path, cache: Path) -> None:
    source = opened.folder.path.resolve()
    arguments = ["-m", "model", "-i", str(source), "-o", str(folder), "-c", str(cache), "-p", "fp32", "-e", "cpu"]
    command = [python, "-m", BUILDER, *arguments, "--extra_options", "hf_remote=false"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / "genai_config.json").is_file():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else f"it ended with exit code {done.returncode}"
        if "No module named 'onnxruntime_genai'" in done.stderr:
            reason = "this Python has no onnxruntime-genai; make venv-ort makes an environment that has it"
        raise ModelError(f"{opened.source}: {BUILDER} of {python} does not convert it: {reason}")


def _versions(python: str) -> dict[str, str]:
    done = subprocess.run([python, "-c", _VERSIONS, *PACKAGES], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a converted model but its manifest."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    found = {}
    for path in files:
        with path.open("rb") as stream:
            found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def read_converted(folder: Path) -> Converted:
    """A converted model whose files are those of its manifest.

    Raises:
        ModelError: there is no manifest, or a file is not the converted one.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
        files, source = manifest["result"]["files"], manifest["source"]["model_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else "is no manifest of a conversion"
        raise ModelError(f"{path}: {reason}; convert the model with audit convert") from error
    actual = digests(folder)
    changed = sorted(name for name in {*files, *actual} if files.get(name) != actual.get(name))
    if changed:
        raise ModelError(f"{folder / changed[0]}: not the file that was converted; convert the model again")
    whole = hashlib.sha256(json.dumps(actual, sort_keys=True).encode()).hexdigest()
    return Converted(folder, str(source), whole, manifest)
