"""What the settings of an arm on vLLM would touch outside the suite.

vLLM imports classes by name, and its process has the working directory on its path: a name is enough to run code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.backends.outside import OutsideAccess, OutsideKind

HOOKS: Final = "engine.backends.vllm.hooks."
"""Classes of our own."""
HARMLESS: Final = frozenset(
    (
        "mode",
        "level",
        "use_inductor",
        "cudagraph_mode",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "cudagraph_num_of_warmups",
        "compile_sizes",
        "custom_ops",
        "use_cudagraph",
    )
)
"""Keys of `compilation_config` that name no code and no file."""
MADE: Final = "made:"


def outside(engine: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """What these engine settings and proposer options name."""
    return (*_code(engine, options), *_files(engine, options))


def _code(engine: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[OutsideAccess]:
    if "python" in engine:
        yield OutsideAccess(OutsideKind.PROGRAM, str(engine["python"]), "engine.python")
    if engine.get("trust_remote_code"):
        yield OutsideAccess(OutsideKind.CODE, "trust_remote_code", "engine.trust_remote_code")
    for name in engine.get("logits_processors", ()):
        yield OutsideAccess(OutsideKind.CODE, str(name), "engine.logits_processors")
    for key in engine.get("compilation_config", {}):
        if key not in HARMLESS:
            yield OutsideAccess(OutsideKind.CODE, f"compilation_config.{key}", f"engine.compilation_config.{key}")
    model = options.get("model")
    if model is not None and not str(model).startswith(HOOKS):
        yield OutsideAccess(OutsideKind.CODE, str(model), "proposer.options.model")


def _files(engine: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[OutsideAccess]:
    for name, source in engine.get("adapters", {}).items():
        if not str(source).startswith(MADE):
            yield OutsideAccess(OutsideKind.FILE, str(source), f"engine.adapters.{name}")
    if options.get("script") is not None:
        yield OutsideAccess(OutsideKind.FILE, str(options["script"]), "proposer.options.script")
