"""Columns that some levels, rules and older versions lack, and the empty ones that stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.record.envelope import READABLE

CELLS: Final = (
    "cell_id",
    "cell_p",
    "cell_q",
    "tail",
    "row_p",
    "p_below",
    "q_token",
    "residual_below",
    "residual_sum",
    "product",
    "q_below",
)
"""Columns of lumped laws, at `topk` only."""
PERTURBED: Final = ("best_id", "best_score", "draft_best_id", "draft_best_score")
"""Columns of the Gumbel rule, at `topk` only."""
DRAWN: Final = ("q_own", "q_sum")
"""Columns of the laws of drafted tokens, at `topk` only."""
SPARSE: Final = (*PERTURBED, *DRAWN)
"""Columns that traces before version 7 lack."""
KEPT: Final = ("kept_at", "kept_logits", "kept_mask_bits", "kept_examined", "kept_q_count", "kept_q_id", "kept_q")
"""Columns of whole rows chosen afterwards, at `topk` only; traces before version 9 lack them."""
MASKS: Final = ("mask_digest", "mask_count", "mask_bits", "spare_mask_bits")
"""Columns of a grammar's masks; empty without a grammar."""
LACKING: Final[Mapping[bytes, tuple[str, ...]]] = dict(
    zip(
        READABLE,
        (
            (),
            (),
            KEPT,
            KEPT,
            (*KEPT, *SPARSE),
            (*KEPT, *SPARSE, *MASKS),
            (*KEPT, *SPARSE, *MASKS, *CELLS),
            (*KEPT, *SPARSE, *MASKS, *CELLS, "draft_version"),
            (*KEPT, *SPARSE, *MASKS, *CELLS, "draft_version", "spare_logits"),
            (*KEPT, *SPARSE, *MASKS, *CELLS, "draft_version", "spare_logits", "logits_digest"),
        ),
        strict=True,
    )
)
"""The columns that each version lacks; missing columns read as empty."""
EMPTY: Final[Mapping[str, NDArray[Any]]] = {
    "draft_version": np.empty(0, np.int32),
    "spare_logits": np.empty((0, 0), np.float32),
    "logits_digest": np.empty(0, np.uint64),
    "mask_digest": np.empty(0, np.uint64),
    "mask_count": np.empty(0, np.int32),
    "mask_bits": np.empty((0, 0), np.uint8),
    "spare_mask_bits": np.empty((0, 0), np.uint8),
    "cell_id": np.empty((0, 0), np.uint32),
    "cell_p": np.empty((0, 0), np.float32),
    "cell_q": np.empty((0, 0), np.float32),
    "tail": np.empty((0, 2)),
    **{name: np.empty((0, 2), np.uint32) for name in PERTURBED[::2]},
    **{name: np.empty((0, 2)) for name in PERTURBED[1::2]},
    **{name: np.empty(0) for name in DRAWN},
    **{name: np.empty(0) for name in CELLS[4:]},
    **{name: np.empty(0, np.uint32) for name in ("kept_at", "kept_examined", "kept_q_count", "kept_q_id")},
    "kept_logits": np.empty((0, 0), np.float32),
    "kept_mask_bits": np.empty((0, 0), np.uint8),
    "kept_q": np.empty(0),
}
WHOLE_ROWS: Final = (
    *("logits", "spare_logits", "q_rows", "mask_bits", "spare_mask_bits"),
    *("kept_logits", "kept_mask_bits"),
)
"""Columns of rows over the vocabulary."""
