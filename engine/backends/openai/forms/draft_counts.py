"""Counts of drafts in an answer, where each server puts them, under one name each: drafted, accepted, steps."""

from collections.abc import Mapping
from typing import Any, Final

OF_VLLM: Final = {"num_draft_tokens": "drafted", "num_accepted_draft_tokens": "accepted", "num_spec_steps": "steps"}
OF_SGLANG: Final = {
    "spec_draft_token_num": "drafted",
    "spec_accept_token_num": "accepted",
    "spec_proposed_drafts": "drafted",
    "spec_accepted_drafts": "accepted",
    "spec_num_proposed_drafts": "drafted",
    "spec_num_correct_drafts": "accepted",
    "spec_verify_ct": "steps",
}
"""Its names, of older versions first."""
LENGTHS: Final = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""SGLang's names of the numbers of steps by accepted tokens."""
BY_LENGTH: Final = "steps_by_accepted"
"""Key of those numbers in an account."""


def draft_counts(whole: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Counts of drafts, if the server reports them per request (vLLM: `metrics`; llama.cpp: `timings`; SGLang:
    `sglext`, for requests with `return_spec_tokens_details`).
    """
    metrics, timings, more = whole.get("metrics"), whole.get("timings"), whole.get("sglext")
    if isinstance(metrics, Mapping) and isinstance(metrics.get("speculative_decoding"), Mapping):
        told = metrics["speculative_decoding"]
        return _named(told, OF_VLLM) | {
            key: told[key] for key in ("per_step_drafted", "per_step_accepted") if _counts(told.get(key))
        }
    if isinstance(timings, Mapping) and isinstance(timings.get("draft_n"), int):
        return {"drafted": timings["draft_n"], "accepted": timings.get("draft_n_accepted", 0)}
    if isinstance(more, Mapping) and isinstance(more.get("spec_tokens_details"), Mapping):
        told = more["spec_tokens_details"]
        counted, lengths = _named(told, OF_SGLANG), [told[key] for key in LENGTHS if _counts(told.get(key))]
        return {**counted, **({BY_LENGTH: lengths[0]} if lengths else {})} if counted else None
    return None


def iterations(choice: Mapping[str, Any], usage: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Steps by the tokens per iteration that TensorRT-LLM reports, which has no other account."""
    average, count = choice.get("avg_decoded_tokens_per_iter"), usage.get("completion_tokens")
    if not isinstance(average, float) or average <= 0 or not isinstance(count, int):
        return None
    return {"steps": round(count / average)}


def predicted(usage: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Counts of drafts in the place where OpenAI counts the tokens of a request's `prediction`."""
    details = usage.get("completion_tokens_details")
    names = ("accepted_prediction_tokens", "rejected_prediction_tokens")
    accepted, rejected = map(details.get, names) if isinstance(details, Mapping) else (None, None)
    if not isinstance(accepted, int) or not isinstance(rejected, int):
        return None
    return {"drafted": accepted + rejected, "accepted": accepted}


def _named(told: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: told[old] for old, new in names.items() if isinstance(told.get(old), int)}


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, int) and 0 <= item < 2**31 for item in value)
