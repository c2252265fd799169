"""Backends, one file or folder each, behind one protocol.

A backend is added by one file, one line in `engine.core.registry.BACKENDS` and its facts
in `REGISTRY`. Each opens the models of a suite once: `open(models) -> Backend`, which
then makes one `Engine` per arm.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from engine.backends.catalogue import ALL_CHOICES, NAMED, READ_CHOICES, WEIGHTS, BackendKind, SourceKind
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.evidence import Declaration
from engine.backends.outside import OutsideAccess
from engine.core.errors import InvalidRequest
from engine.core.registry import BACKENDS, EVIDENCE, resolve
from engine.core.structured import ConstraintSpec

REGISTRY: Final[Mapping[str, BackendKind]] = {
    "native": BackendKind(BACKENDS["native"], EVIDENCE["native"], tool_choices=ALL_CHOICES, ours=True),
    "scripted": BackendKind(
        BACKENDS["scripted"], EVIDENCE["scripted"], (SourceKind.SCRIPTED,), tool_choices=READ_CHOICES, ours=True
    ),
    "transformers": BackendKind(
        BACKENDS["transformers"],
        EVIDENCE["transformers"],
        proposers=("draft_model", "prompt_lookup", "early_exit", "universal", "mtp", "dflash"),
        rules=("greedy", "chain"),
        options="engine-transformers",
    ),
    "vllm": BackendKind(
        BACKENDS["vllm"],
        EVIDENCE["vllm"],
        proposers=(
            "ngram",
            "suffix",
            "draft_model",
            "medusa",
            "eagle",
            "eagle3",
            "mtp",
            "dflash",
            "custom_class",
        ),
        rules=("greedy", "chain", "block"),
        options="engine-vllm",
        tool_choices=READ_CHOICES,
        asked="engine.backends.vllm.structured:grammar_problem",
        outside="engine.backends.vllm.outside:outside",
    ),
    "openai": BackendKind(
        BACKENDS["openai"],
        EVIDENCE["openai"],
        (*WEIGHTS, SourceKind.SERVED),
        proposers=("served",),
        rules=("greedy", "chain", "gumbel"),
        options="engine-openai",
        tokens=False,
        tool_choices=(*READ_CHOICES, "required", NAMED),
        asked="engine.backends.openai.structured:problem_of",
        outside="engine.backends.openai.settings:outside",
    ),
    "llama_cpp": BackendKind(
        BACKENDS["llama_cpp"],
        EVIDENCE["llama_cpp"],
        proposers=("draft_model", "ngram_simple", "ngram_map_k", "ngram_map_k4v", "ngram_mod"),
        rules=("greedy", "chain", "gumbel"),
        options="engine-llama_cpp",
        outside="engine.backends.llama_cpp.settings:outside",
    ),
    "onnxruntime_genai": BackendKind(
        BACKENDS["onnxruntime_genai"],
        EVIDENCE["onnxruntime_genai"],
        proposers=("draft_model", "ngram"),
        rules=("greedy", "chain"),
        options="engine-onnxruntime_genai",
        outside="engine.backends.onnxruntime_genai.settings:outside",
    ),
    "openvino_genai": BackendKind(
        BACKENDS["openvino_genai"],
        EVIDENCE["openvino_genai"],
        proposers=("draft_model", "prompt_lookup"),
        rules=("greedy", "chain"),
        options="engine-openvino_genai",
        outside="engine.backends.openvino_genai.settings:outside",
    ),
    "mlx_lm": BackendKind(
        BACKENDS["mlx_lm"],
        EVIDENCE["mlx_lm"],
        proposers=("draft_model",),
        rules=("greedy", "chain"),
        options="engine-mlx_lm",
        outside="engine.backends.mlx_lm.settings:outside",
    ),
}


def declared(backend: str) -> Declaration:
    """The evidence in the backend's records; imports neither torch nor the engine behind it."""
    found: Declaration = resolve({backend: REGISTRY[backend].evidence}, backend, "backend")
    return found


def grammar_problem(backend: str, engine: Mapping[str, Any], spec: ConstraintSpec) -> str | None:
    """Why an arm of another engine, with these engine settings, cannot have a grammar; None if it can."""
    named = REGISTRY[backend].asked
    if named is None:
        return f"backend {backend} has no grammars; remove structured"
    found: str | None = resolve({backend: named}, backend, "backend")(engine, spec)
    return found


def outside_access(backend: str, engine: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """What an arm's engine settings and proposer options touch outside the suite.

    Raises:
        InvalidRequest: a setting that cannot be read, such as an address without a host.
    """
    named = REGISTRY[backend].outside
    if named is None:
        return ()
    accesses: tuple[OutsideAccess, ...] = resolve({backend: named}, backend, "backend")(engine, options)
    return accesses


def open_backend(kind: str, models: Mapping[str, ModelSource]) -> Backend:
    """Load a suite's models into a backend.

    Raises:
        InvalidRequest: unknown backend, or one whose package is not installed.
        ModelError: a model that cannot be loaded, named.
    """
    if kind not in REGISTRY:
        raise InvalidRequest(f"unknown backend {kind!r}; known: {', '.join(sorted(REGISTRY))}")
    try:
        backend: Backend = resolve({kind: REGISTRY[kind].open}, kind, "backend")(models)
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"backend {kind} needs the package {error.name}, which {sys.executable} lacks; "
            "install it, or run this in an environment that has it"
        ) from error
    return backend
