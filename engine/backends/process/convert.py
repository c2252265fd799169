"""Models for other engines, by a converter in the engine's Python, with a manifest that ties the result to its source.

The manifest `conversion.json` holds SHA-256 digests of the source's and of the result's files, the versions, and the
rounding. Cannot see: an error of the converter itself; `audit run` compares the converted model with a reference pass.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.backends.process.engine_process import EngineProgram
from engine.core.child import with_project
from engine.core.errors import ModelError
from engine.models.loading import OpenedSource

if TYPE_CHECKING:
    import numpy as np

MANIFEST: Final = "conversion.json"
VERSION: Final = 1
UNROUNDED: Final = "none: float32 holds every weight of the source"
"""The rounding of float32: it holds every float32, bfloat16 and float16 weight exactly."""
FAMILIES: Final = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Decoders that this project's own converters know."""
_VERSIONS: Final = (
    "import json, sys; from importlib.metadata import version; "
    "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
)


class WorkFolder:
    """A temporary folder, removed with the last object that holds it. `name` is a part of its name."""

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"specaudit-{name}-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """The folder of the source, the new folder, and one for temporary files."""

    source: Path
    out: Path
    cache: Path


@dataclass(frozen=True, slots=True)
class ModelConverter:
    """One format.

    module: run with Python's `-m`. arguments: those of the module. result: a file that every converted folder has.
    packages: whose versions the manifest names. require: raises ModelError for a model that the engine cannot run.
    ours: the module is this project's. backend: its registered name, if that is not the package's.
    """

    kind: str
    program: EngineProgram
    module: str
    arguments: Callable[[ConversionJob], Sequence[str]]
    result: str
    packages: tuple[str, ...]
    require: Callable[[OpenedSource], None]
    ours: bool = False
    backend: str = ""


def paths_of(job: ConversionJob) -> Sequence[str]:
    """The arguments of this project's own converters."""
    return [str(job.source), str(job.out)]


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted model: its folder, the digest of its source, and the digest of its own files."""

    folder: Path
    source_sha256: str
    sha256: str
    manifest: Mapping[str, Any]

    def identity(self) -> dict[str, Any]:
        """The identity of the model in a record."""
        stated = {key: self.manifest[key] for key in ("precision", "rounding", "packages")}
        return {"sha256": self.sha256, "source_sha256": self.source_sha256, **stated}


def convert(converter: ModelConverter, opened: OpenedSource, python: str, out: Path) -> Converted:
    """Convert a model into the new folder `out`.

    Raises:
        ModelError: the engine cannot run the model, or its converter refuses it; nothing is left behind.
    """
    converter.require(opened)
    scratch = out.with_name(f".{out.name}.converting")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        job = ConversionJob(opened.folder.path.resolve(), scratch / "model", scratch / "cache")
        _run(converter, opened, python, job)
        manifest = {
            "version": VERSION,
            "to": converter.kind,
            "source": {**opened.facts, "files": {file.name: file.sha256 for file in opened.folder.files}},
            "result": {"files": digests(job.out)},
            "precision": "fp32",
            "rounding": UNROUNDED,
            "packages": _versions(python, converter.packages),
        }
        (job.out / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", "utf-8")
        job.out.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return read_converted(out)


def _run(converter: ModelConverter, opened: OpenedSource, python: str, job: ConversionJob) -> None:
    command = [python, "-m", converter.module, *converter.arguments(job)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=with_project({}) if converter.ours else None
    )
    if done.returncode or not (job.out / converter.result).is_file():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else f"it ended with exit code {done.returncode}"
        program = converter.program
        if f"No module named '{program.package}'" in done.stderr:
            reason = f"this Python has no {program.name}; make {program.target} makes an environment that has it"
        raise ModelError(f"{opened.source}: {converter.module} of {python} does not convert it: {reason}")


def _versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    done = subprocess.run([python, "-c", _VERSIONS, *packages], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a converted model but its manifest."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    result = {}
    for path in files:
        with path.open("rb") as stream:
            result[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return result


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


def require_known(opened: OpenedSource, kind: str) -> None:
    """Refuse a model that no converter of ours knows; `kind` is the format. Raises ModelError."""
    problem = unknown(opened.folder.config)
    if problem is not None:
        raise ModelError(f"{opened.folder.name('config.json')}: the converter to {kind} {problem}; use another model")


def unknown(config: Mapping[str, Any]) -> str | None:
    """The part of a configuration unknown to converters."""
    family = (config.get("architectures") or ["none"])[0]
    if family not in FAMILIES:
        return f"knows {', '.join(FAMILIES)}, not {family}"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        return f"knows plain rotary positions only, not {rope.get('rope_type', rope.get('type'))}"
    if config.get("hidden_act", "silu") != "silu":
        return f"knows hidden_act silu, not {config['hidden_act']}"
    return "knows no sliding windows" if config.get("use_sliding_window") else None


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder, in float32, as this project's own converters read them in the engine's Python."""
    from safetensors import safe_open

    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as stream:
            weights.update({name: stream.get_tensor(name).float().numpy() for name in stream.keys()})  # noqa: SIM118
    return weights
