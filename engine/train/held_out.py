"""Windows of the held-out text, for measuring heads while they are trained."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.train.corpus import Corpus


def held_out_windows(corpus: Corpus, window: int, windows: int = 3) -> dict[str, Tensor]:
    """By domain its first windows [n, window]; a domain shorter than one window is left out."""
    found = {}
    for domain, tokens in corpus.held_out.items():
        count = min(windows, len(tokens) // window)
        if count:
            found[domain] = torch.from_numpy(tokens[: count * window].reshape(count, window).astype(np.int64))
    return found
