"""Drafts are tested against the target's bare softmax, without temperature and truncation.

The residual is taken from it too; only the bonus token sees the request's parameters.
"""

from __future__ import annotations

import numpy as np

from engine.core.types import Floats
from engine.faults.chain_walk import ChainWalk, Origin, chain_fault
from engine.faults.interface import WARPED
from engine.sampling.target_rows import TargetRows
from engine.sampling.transforms import softmax


def _bare(rows: TargetRows, row: int) -> Floats:
    return softmax(rows.logits[row].astype(np.float64))


FAULT = chain_fault(
    "target_not_warped_in_test",
    Origin("vllm-project/vllm#9834, #10198"),
    lambda facts: ChainWalk(facts, tested=_bare),
    WARPED,
)
