"""Two defects of vLLM 0.32 on CPUs, put right in a running engine, so that other effects can be seen alone.

One: the parameters of drafted rows (temperature, top-k, top-p) are spread over
the rows into a copy that is thrown away, so they are whatever memory held. Two:
top-k over no row at all asks for the largest of nothing and ends the engine. An
engine that was repaired says so in its effective configuration. Knows nothing
about other versions: where the names are not there, it refuses.
"""

from __future__ import annotations

from typing import Any, Final

REPAIRS: Final = ("expand",)


def repair(module: Any) -> None:
    """Replace both functions in `vllm.v1.sample.rejection_sampler`.

    Raises:
        AttributeError: this version has not got them.
    """
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
