"""Log-probabilities of committed tokens, from the rows that decided them: the target's own, before any transform."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.serve.events import TokenScore
from engine.decode.arrivals import CommittedStep


def scores_of(step: CommittedStep, top: int) -> tuple[TokenScore, ...]:
    """The scores of a step's tokens, with the `top` likeliest of each row, the likeliest first."""
    return tuple(_score(step.rows.logits[each.row], each.token, top) for each in step.outcome.emitted)


def _score(logits: NDArray[np.floating[Any]], token: int, top: int) -> TokenScore:
    row = logits.astype(np.float64)
    highest = row.max()
    logs = row - (highest + np.log(np.exp(row - highest).sum()))
    if not top:
        return TokenScore(token, float(logs[token]))
    best = np.argpartition(-logs, min(top, len(logs)) - 1)[:top]
    # ties go to the lower id, as in decoding
    ordered = sorted(best.tolist(), key=lambda each: (-logs[each], each))
    return TokenScore(token, float(logs[token]), tuple((each, float(logs[each])) for each in ordered))
