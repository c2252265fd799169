"""Checks that the internals which the hooks wrap are those they were written for.

A hook on a callable with changed parameters would record wrong values. The module therefore compares the parameter
names of every wrapped callable, and the version must be a tested one; each mismatch is a problem, and any problem
makes the evidence incomplete. The module imports nothing of vLLM itself and cannot detect a changed behaviour behind
the same parameters.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

TRIED: Final = ("0.32.0",)
"""Tested versions."""


@dataclass(frozen=True, slots=True)
class HookPoint:
    """One callable: its location and its first parameters."""

    module: str
    path: str
    parameters: tuple[str, ...]

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"{self.module}.{self.path}"


@dataclass(frozen=True, slots=True)
class ResolvedPoint:
    """The result of checking a point: the callable and the object that holds it, or a problem."""

    holder: Any = None
    function: Callable[..., Any] | None = None
    problem: str | None = None


V1: Final = (
    HookPoint("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._sample", ("self", "logits", "spec_decode_metadata")),
    HookPoint(
        "vllm.v1.sample.rejection_sampler",
        "rejection_sample",
        (
            *("draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs"),
            *("target_logits", "bonus_token_ids", "sampling_metadata"),
        ),
    ),
    HookPoint("vllm.v1.sample.ops.topk_topp_sampler", "apply_top_k_top_p", ("logits", "k", "p")),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner",
        "apply_grammar_bitmask",
        ("scheduler_output", "grammar_output", "input_batch", "logits"),
    ),
    HookPoint("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.take_draft_token_ids", ("self",)),
)
"""Model runner V1: a step's raw rows, its verification, the law of tokens after a draft, the grammars' masks, and the
drafts that the scheduler gets.
"""

V2: Final = (
    HookPoint("vllm.v1.worker.gpu.sample.sampler", "Sampler.__call__", ("self", "logits", "input_batch")),
    HookPoint(
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
        "RejectionSampler.__call__",
        ("self", "logits", "input_batch", "draft_logits", "invalid_drafts"),
    ),
)
"""Model runner V2: the same two places."""

SCHEDULER: Final = (
    HookPoint(
        "vllm.v1.core.sched.scheduler",
        "Scheduler.update_from_output",
        ("self", "scheduler_output", "model_runner_output"),
    ),
    HookPoint("vllm.v1.core.sched.scheduler", "Scheduler.update_draft_token_ids", ("self", "draft_token_ids")),
)
"""The scheduler's hook, in another process."""


def resolve(point: HookPoint) -> ResolvedPoint:
    """The callable, if it exists and begins with the expected parameters."""
    try:
        holder: Any = importlib.import_module(point.module)
        *owners, last = point.path.split(".")
        for owner in owners:
            holder = getattr(holder, owner)
        function = getattr(holder, last)
    except (ImportError, AttributeError) as error:
        return ResolvedPoint(problem=f"{point.name}: not there ({error})")
    parameters = tuple(inspect.signature(function).parameters)
    if parameters[: len(point.parameters)] != point.parameters:
        expected = ", ".join(point.parameters)
        return ResolvedPoint(
            problem=f"{point.name}: its parameters are {', '.join(parameters)}; expected to begin {expected}"
        )
    return ResolvedPoint(holder, function)


def problems(points: Sequence[HookPoint], version: str) -> list[str]:
    """All mismatches, the version first."""
    unknown = [] if version in TRIED else [f"vLLM {version} was never tried; tried: {', '.join(TRIED)}"]
    return [*unknown, *(point.problem for point in map(resolve, points) if point.problem)]
