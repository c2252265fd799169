"""Drafts are tested against the target's bare softmax, without temperature and truncation.

The residual is taken from it too; only the bonus token sees the request's parameters.
"""

from __future__ import annotations

import numpy as np

from engine.faults.base import WARPED
from engine.faults.chain_walk import ChainWalk, Origin, chain_fault
from engine.rows import TargetRows
from engine.sampling import softmax
from engine.types import Floats


def _bare(rows: TargetRows, row: int) -> Floats:
    return softmax(rows.logits[row].astype(np.float64))


FAULT = chain_fault(
    "target_not_warped_in_test",
    Origin("vllm-project/vllm#9834, #10198"),
    lambda facts: ChainWalk(facts, tested=_bare),
    WARPED,
)
