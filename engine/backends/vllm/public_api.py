"""vLLM's public interfaces: outputs, metrics of a request, counters, its final configuration.

Runs in the driver.
"""

from typing import Any, Final

COUNTERS: Final = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
    "vllm:num_preemptions": "preemptions",
}
"""vLLM's counters by the names in the records."""
CONFIG: Final = "structured_outputs_config"
READ_BACK: Final = ("backend", "disable_any_whitespace", "disable_additional_properties")
"""Settings of grammars that decide a mask."""


def outputs_of(output: Any) -> list[dict[str, Any]]:
    """The answers of a finished request, JSON-able: one, or several samples, named as vLLM's core names them."""
    several = len(output.outputs) > 1
    return [_output_of(output, said, f"{said.index}_" if several else "") for said in output.outputs]


def _output_of(output: Any, said: Any, sample: str) -> dict[str, Any]:
    """One answer. `logprobs` None if it has none, `listed` tokens of every list; `steps` None without speculation."""
    tokens = [int(other) for other in said.token_ids]
    metrics = said.spec_decode_metrics
    return {
        "id": f"{sample}{output.request_id}",
        "tokens": tokens,
        "text": said.text,
        "finish_reason": said.finish_reason,
        "stop_reason": said.stop_reason,
        "logprobs": None if said.logprobs is None else _own_logprobs(said.logprobs, tokens),
        "listed": sorted(set.intersection(*map(set, said.logprobs))) if said.logprobs else [],
        "steps": None
        if metrics is None
        else {"accepted": list(metrics.per_step_accepted), "drafted": list(metrics.per_step_drafted)},
        "cached_tokens": output.num_cached_tokens,
        "samples": len(output.outputs),
        "prompt_logprobs": None if output.prompt_logprobs is None else _of_prompt(output),
    }


def _of_prompt(output: Any) -> dict[str, Any]:
    """The prompt's own log-probabilities, None for its first token, and how many of the largest every place has."""
    rows = output.prompt_logprobs
    own = _own_logprobs([row or {} for row in rows], list(output.prompt_token_ids))
    return {"own": own, "ranks": min((_ranks(row) for row in rows[1:]), default=None)}


def _ranks(row: Any) -> int:
    """The largest k for which the row has the k largest; a token of the prompt may stand beside them."""
    ranks = {item.rank for item in row.values()}
    return next(k for k in range(len(ranks) + 1) if k + 1 not in ranks)


def _own_logprobs(rows: Any, tokens: list[int]) -> list[float | None]:
    """Of the tokens themselves; None where a token has none."""
    result = [row.get(token) for row, token in zip(rows, tokens, strict=False)]
    return [None if item is None else float(item.logprob) for item in result]


def counters(engine: Any) -> dict[str, int]:
    """The engine's own counts so far."""
    values = ((COUNTERS.get(metric.name.removesuffix("_total")), metric) for metric in engine.get_metrics())
    return {name: int(item.value) for name, item in values if name is not None}


def settings_of(config: Any) -> dict[str, Any]:
    """The settings that resulted from the arguments, by argument name."""
    model, schedule, cache = config.model_config, config.scheduler_config, config.cache_config
    draft = config.speculative_config
    settled = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": model.max_model_len,
        "enforce_eager": model.enforce_eager,
        "seed": model.seed,
        "logprobs_mode": str(model.logprobs_mode),
        "quantization": model.quantization,
        "max_num_seqs": schedule.max_num_seqs,
        "max_num_batched_tokens": schedule.max_num_batched_tokens,
        "enable_chunked_prefill": schedule.enable_chunked_prefill,
        "async_scheduling": bool(schedule.async_scheduling),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "kv_cache_dtype": str(cache.cache_dtype),
        "block_size": cache.block_size,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "scheduling_policy": str(schedule.policy),
        "logits_processors": [str(processor) for processor in model.logits_processors or ()],
        **_adapters(config.lora_config),
        "compilation_mode": _word(config.compilation_config.mode),
        **{f"{CONFIG}.{name}": getattr(config.structured_outputs_config, name) for name in READ_BACK},
    }
    return {"engine": settled, "speculative": None if draft is None else _speculative(draft)}


def _adapters(lora: Any) -> dict[str, Any]:
    if lora is None:
        return {"enable_lora": False}
    return {"enable_lora": True, "max_loras": lora.max_loras, "max_lora_rank": lora.max_lora_rank}


def _speculative(draft: Any) -> dict[str, Any]:
    """Plain settings of the draft; models and parallel configurations stay out."""
    named = ((name, getattr(draft, name)) for name in vars(draft) if not name.startswith("_"))
    return {
        name: _word(value) for name, value in named if isinstance(value, str | int | float | bool | list | type(None))
    }


def _word(value: Any) -> Any:
    return getattr(value, "name", value)
