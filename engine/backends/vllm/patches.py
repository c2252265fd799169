"""Fixes for six defects of vLLM 0.32, applied in a running engine so that other effects can be seen alone.

`expand`, on CPUs. One: the parameters of drafted rows (temperature, top-k, top-p) are spread over the rows into a copy
that is thrown away, so they hold uninitialised memory. Two: top-k over zero rows takes the maximum of an empty tensor
and ends the engine. `min_tokens`, in the first model runner: the row behind a draft is masked by the answer's length
before the draft, so that an answer cannot end there although it is long enough. `chunked_seed`, on CPUs: for a request
with a seed whose prompt is not read to its end, the runner takes back a number by the generator's offset, which
generators on CPUs lack, and the engine ends. `base_rows`, on CPUs: rows without an adapter have index -1, which the
operations of adapters read as the last one's place. `shared_embedding`: a head takes over the target's embedding with
the adapters around it, which counts the target's rows and not the head's, so that the engine ends. The effective
configuration of a repaired engine states the repair. A version without these names raises AttributeError.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

EXPAND: Final = "expand"
MIN_TOKENS: Final = "min_tokens"
CHUNKED_SEED: Final = "chunked_seed"
BASE_ROWS: Final = "base_rows"
SHARED_EMBEDDING: Final = "shared_embedding"
ALL: Final = "all"


def repair(kind: str, runner: Any) -> None:
    """Apply the fix that `kind` names, in this process.

    Args:
        kind: one of the names above.
        runner: the worker's model runner, with its models loaded.

    Raises:
        AttributeError: this version lacks the names to replace.
    """
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if kind in (EXPAND, ALL):
        repair_rows(rejection_sampler)
    if kind in (MIN_TOKENS, ALL):
        repair_lengths(rejection_sampler.RejectionSampler, MinTokensLogitsProcessor)
    if kind in (CHUNKED_SEED, ALL) and current_platform.is_cpu():
        repair_seeds(GPUModelRunner)
    if kind in (BASE_ROWS, ALL) and current_platform.is_cpu():
        repair_base_rows(lora_ops, punica_cpu)
    if kind in (SHARED_EMBEDDING, ALL):
        repair_embedding(getattr(runner, "drafter", None))


def repair_rows(module: Any) -> None:
    """Replace both functions in `vllm.v1.sample.rejection_sampler`; raises as `repair`."""
    top = module.apply_top_k_top_p
    spread = module.expand_batch_to_tokens
    assert callable(top)
    assert callable(spread)
    module.expand_batch_to_tokens = expanded
    module.apply_top_k_top_p = lambda logits, *args, **named: top(logits, *args, **named) if len(logits) else logits


def expanded(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """[num_tokens] each request's value of `x` [B] for every one of its drafted tokens.

    Args:
        x: values by request.
        cu_num_tokens: [B] drafted tokens up to and with each request.
        num_tokens: all of them.
        replace_from: a value that is written as `replace_to`.
        replace_to: see there.
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(values, counts, output_size=num_tokens)


def repair_lengths(sampler: Any, processor: Any) -> None:
    """Pass the drafts to `processor` while `sampler` runs; raises as `repair`.

    Args:
        sampler: the class RejectionSampler.
        processor: the class MinTokensLogitsProcessor. The fix ignores grammars that allow only an end token.
    """
    forward, apply = sampler.forward, processor.apply
    assert callable(forward)
    assert callable(apply)

    def counting_forward(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        every = [item for item in sampling_metadata.logitsprocs.all if isinstance(item, processor)]
        with _drafted_counts(every, metadata.num_draft_tokens):
            return forward(self, metadata, draft_probs, logits, sampling_metadata)

    def counting_apply(self: Any, logits: Any) -> Any:
        drafted = getattr(self, "specaudit_drafted", None)
        if drafted is None:
            return apply(self, logits)
        for row, (least, answer, ends, *_) in self.min_toks.items():
            if len(answer) + drafted[row] < least:
                logits[row, list(ends)] = float("-inf")
        return logits

    sampler.forward, processor.apply = counting_forward, counting_apply


@contextmanager
def _drafted_counts(processors: list[Any], drafted: list[int]) -> Iterator[None]:
    for processor in processors:
        processor.specaudit_drafted = drafted
    try:
        yield
    finally:
        for processor in processors:
            processor.specaudit_drafted = None


def repair_seeds(runner: Any) -> None:
    """Take back by its state what a generator drew for a token that is discarded; raises as `repair`.

    Args:
        runner: the class GPUModelRunner.
    """
    sample, bookkeeping = runner._sample, runner._bookkeeping_sync
    assert callable(sample)
    assert callable(bookkeeping)

    def undoing_sample(self: Any, *args: Any, **named: Any) -> Any:
        generators = self.input_batch.generators
        drawn = {row: item.get_state() for row, item in generators.items() if self.discard_request_mask.np[row]}
        output = sample(self, *args, **named)
        for row, state in drawn.items():
            generators[row].set_state(state)
        return output

    def silent_bookkeeping(self: Any, *args: Any, **named: Any) -> Any:
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return bookkeeping(self, *args, **named)
        finally:
            batch.generators = generators

    runner._sample, runner._bookkeeping_sync = undoing_sample, silent_bookkeeping


def repair_base_rows(*modules: Any) -> None:
    """Compute nothing for rows whose index says that no adapter serves them; raises as `repair`.

    Args:
        modules: those that hold vLLM's operations for CPUs, under the same names.
    """
    for module in modules:
        for name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"):
            setattr(module, name, _without_base_rows(getattr(module, name)))


def _without_base_rows(operation: Callable[..., None]) -> Callable[..., None]:
    def masked(inputs: Any, weights: Any, output: Any, indices: Any, *args: Any, **named: Any) -> None:
        served = inputs.masked_fill((indices < 0).unsqueeze(-1), 0)
        operation(served, weights, output, indices, *args, **named)

    return masked


def repair_embedding(drafter: Any) -> None:
    """Give a head the target's embedding without the adapters around it; no effect on other drafters.

    Args:
        drafter: the runner's, with its model loaded; None without a draft.
    """
    inner = getattr(getattr(drafter, "model", None), "model", None)
    base = getattr(getattr(inner, "embed_tokens", None), "base_layer", None)
    if inner is not None and base is not None:
        inner.embed_tokens = base
