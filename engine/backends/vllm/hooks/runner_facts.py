"""Facts about a worker, read from its running objects.

vLLM's configuration keeps requested settings that it ignores, so the verification method is read from the sampler and
the drafting method from the drafter.

What the worker's batch holds for each of its requests: the adapter in effect, and whether a seed fixes its numbers.

Read from the arrays that the step's forward and sampler use, not from the requests.
"""

from collections.abc import Mapping
from typing import Any


def is_v2(runner: Any) -> bool:
    """True for model runner V2."""
    return type(runner).__module__.startswith("vllm.v1.worker.gpu.")


def facts_of(runner: Any) -> dict[str, Any]:
    """Classes of the runner, drafter and samplers, with the verification and drafting methods."""
    newer = is_v2(runner)
    drafter = getattr(runner, "speculator" if newer else "drafter", None)
    verifier = getattr(runner, "rejection_sampler", None)
    return {
        "runner": _name(runner),
        "model_runner": "v2" if newer else "v1",
        "drafter": _name(drafter),
        "draft_model": _name(getattr(drafter, "model", None)),
        "sampler": _name(getattr(runner, "sampler", None)),
        "verifier": _name(verifier),
        "rejection_sample_method": None if verifier is None else verification(verifier, newer),
        "draft_sample_method": None if drafter is None else drafting(drafter, newer),
        "device": str(getattr(runner, "device", None)),
        "processors": [_name(one) for one in processors(runner)],
    }


def processors(runner: Any) -> list[Any]:
    """The logits processors in effect that vLLM does not ship."""
    batch = getattr(runner, "input_batch", None)
    every = getattr(getattr(batch, "logitsprocs", None), "all", ())
    return [one for one in every if not type(one).__module__.startswith("vllm.")]


def verification(verifier: Any, newer: bool) -> str:
    """V1's sampler has the standard rule and, on GPUs, rates that are given; the block rule is V2's only."""
    if getattr(verifier, "synthetic_conditional_rates", None) is not None:
        return "synthetic"
    return "block" if newer and verifier.use_block_verification else "standard"


def drafting(drafter: Any, newer: bool) -> str:
    """True if drafts are drawn from rows that verification receives."""
    if newer:
        return "probabilistic" if getattr(drafter, "draft_logits", None) is not None else "greedy"
    return "probabilistic" if getattr(drafter, "_enable_probabilistic_draft_probs", False) else "greedy"


def _name(thing: Any) -> str | None:
    return None if thing is None else f"{type(thing).__module__}.{type(thing).__name__}"


def batch_settings(batch: Any) -> tuple[Mapping[str, Any], ...]:
    """[B] for each request of model runner V1's batch."""
    numbers = batch.request_lora_mapping[: batch.num_reqs].tolist()
    adapters = {number: item.lora_name for number, item in batch.lora_id_to_lora_request.items()}
    return tuple(
        {"adapter": adapters.get(int(number)), "seeded": row in batch.generators} for row, number in enumerate(numbers)
    )
