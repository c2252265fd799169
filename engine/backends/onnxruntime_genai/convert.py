"""The engine's own builder of models (`python -m onnxruntime_genai.models.builder`), and the models that it refuses.

The engine loads a folder with one configuration over the folders of the target and of the draft. It refuses paths that
leave the folder, so both are links in it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from engine.backends.onnxruntime_genai.settings import PROGRAM
from engine.backends.process.convert import ConversionJob, ModelConverter
from engine.core.errors import ModelError
from engine.models.loading import OpenedSource

FAMILY: Final = 16
"""The engine's attention needs a head size that this divides."""
CONFIG: Final = "genai_config.json"
SESSION: Final = "session_options"


def head_size(config: Mapping[str, Any]) -> int | None:
    """The size of an attention head; None if the configuration does not give it."""
    stated, hidden, heads = (config.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if isinstance(stated, int):
        return stated
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None


def require_convertible(opened: OpenedSource) -> None:
    """Refuse a model that the engine cannot run. Raises ModelError."""
    size = head_size(opened.folder.config)
    if size is not None and size % FAMILY:
        raise ModelError(
            f"{opened.folder.name('config.json')}: head size {size} is not a multiple of {FAMILY}, which the attention "
            "of onnxruntime-genai needs; use another model, such as bundled:medium_draft"
        )


def builder_arguments(job: ConversionJob) -> Sequence[str]:
    """Those of the builder, for float32 on a CPU and without a network."""
    places = ["-i", str(job.source), "-o", str(job.out), "-c", str(job.cache)]
    return ["-m", "model", *places, "-p", "fp32", "-e", "cpu", "--extra_options", "hf_remote=false"]


CONVERTER: Final = ModelConverter(
    kind="onnx",
    program=PROGRAM,
    module="onnxruntime_genai.models.builder",
    arguments=builder_arguments,
    result=CONFIG,
    packages=("onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir", "torch", "transformers"),
    require=require_convertible,
)


def compose(home: Path, target: Path, draft: Path | None, eos_ids: Sequence[int], threads: int | None) -> Path:
    """Write the folder into `home`, which must be empty.

    Raises:
        ModelError: a folder has no readable configuration, or ends at other tokens than `eos_ids`.
    """
    config = _read(target)
    stated = config["model"]["eos_token_id"]
    ends = [stated] if isinstance(stated, int) else list(stated)
    if sorted(ends) != sorted(eos_ids):
        raise ModelError(
            f"{target / CONFIG}: ends at tokens {sorted(ends)}, but the target at {sorted(eos_ids)}; convert it again"
        )
    config["model"]["decoder"] = _decoder(home, "target", target, threads)
    if draft is not None:
        config["model"]["draft"] = _decoder(home, "draft", draft, threads)
    (home / CONFIG).write_text(json.dumps(config, indent=2), "utf-8")
    return home


def _read(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _ = config["model"]["decoder"]["filename"], config["model"]["eos_token_id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: no configuration of onnxruntime-genai; convert the model with audit convert") from (
            error
        )
    return config


def _decoder(home: Path, name: str, folder: Path, threads: int | None) -> dict[str, Any]:
    decoder: dict[str, Any] = _read(folder)["model"]["decoder"]
    (home / name).symlink_to(folder.resolve(), target_is_directory=True)
    session = dict(decoder.get(SESSION, {}))
    if threads is not None:
        session["intra_op_num_threads"] = threads
    return {**decoder, "filename": f"{name}/{decoder['filename']}", SESSION: session}
