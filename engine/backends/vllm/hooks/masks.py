"""What a grammar does to the rows of one step, read from the rows themselves.

vLLM applies its grammars' bits to the rows in place, just before its sampler runs. The hook holds the rows as they were
and compares: a token is forbidden where its logit became minus infinity. The mask on record is thus the one that was
applied to that row, not the one that the scheduler sent. The code runs in vLLM's worker.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def allowed_tokens(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """[N, V] True where a row still allows a token; rows of requests without a grammar allow all."""
    return ~(torch.isneginf(after) & ~torch.isneginf(before))


def packed_masks(allowed: torch.Tensor) -> NDArray[np.uint8]:
    """[N, ceil(V / 8)] masks as bits, least significant first."""
    return np.packbits(allowed.cpu().numpy(), axis=-1, bitorder="little")


def q_behind(runner: Any, metadata: Any) -> Mapping[int, torch.Tensor]:
    """By a request's place in the batch: [V] the row from which the drafter drew the token behind the scheduled ones.

    vLLM drops that token, and those after it, if the grammar forbids it; the verifier never gets its row. Requests
    whose whole draft was scheduled, or whose drafter has no rows, are absent.
    """
    rows, names = getattr(runner, "_draft_probs", None), getattr(runner, "_draft_prob_req_ids", None)
    if rows is None or names is None:
        return {}
    at = {name: index for index, name in enumerate(names)}
    batch = runner.input_batch.req_ids[: runner.input_batch.num_reqs]
    counts = metadata.num_draft_tokens if metadata is not None else [0] * len(batch)
    return {
        index: rows[at[name], count].clone()
        for index, (name, count) in enumerate(zip(batch, counts, strict=True))
        if name in at and count < rows.shape[1]
    }


def offered_behind(runner: Any, metadata: Any, offered: MutableMapping[str, list[int]]) -> dict[int, list[int]]:
    """By a request's place in the batch: its last draft behind the scheduled tokens; takes the drafts out."""
    batch = runner.input_batch.req_ids[: runner.input_batch.num_reqs]
    counts = metadata.num_draft_tokens if metadata is not None else [0] * len(batch)
    drafts = (offered.pop(name, [])[count:] for name, count in zip(batch, counts, strict=True))
    return {index: rest for index, rest in enumerate(drafts) if rest and rest[0] >= 0}
