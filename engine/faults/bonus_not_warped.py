"""The bonus token is drawn from the target's bare softmax, without temperature and truncation."""

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
    "bonus_not_warped",
    Origin("none known: the copy of EAGLE-1 in hemingkx/Spec-Bench does it, by reading"),
    lambda facts: ChainWalk(facts, ends=_bare),
    WARPED,
)
