"""One multi-token prediction (MTP) module: h' = Layer(project(cat[norm(embedding), norm(state)])), then a norm.

The embedding comes first. What a module returns is normed once: the head reads it,
and so does the next module or step. Source: DeepSeek-V3, arXiv 2412.19437, section
2.2; the order and the norms are those of its published weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.heads.decoder import Decoder, LayerForm
from engine.models.cache import TensorSlotCache
from engine.models.interface import Placement
from engine.models.lean_weights import LeanConfig, LeanWeights
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import Affine
from engine.models.numerics.layouts import flat


class MtpModule:
    """A module over its own tensors and, where it has none, the target's embedding and head.

    Args:
        config: of the module: sizes, rope, epsilon.
        tensors: by the names of `engine.heads.formats.mtp`, without `modules.K.`.
        target: whose dtype the module takes.
    """

    def __init__(self, config: LeanConfig, tensors: Mapping[str, Tensor], target: LeanWeights) -> None:
        numerics, dtype = FastNumerics(), target.embedding.dtype
        self._embedding = tensors.get("embedding", target.embedding).to(dtype)
        self._embedding_norm = numerics.norm(tensors["embedding_norm"].to(dtype), config.eps, config.hidden)
        self._hidden_norm = numerics.norm(tensors["hidden_norm"].to(dtype), config.eps, config.hidden)
        self._project = numerics.matrix(Affine(tensors["project"].to(dtype), None))
        self._decoder = Decoder(config, tensors, (LayerForm(),), dtype)
        self._norm = numerics.norm(tensors["norm"].to(dtype), config.eps, config.hidden)
        self._head = numerics.matrix(Affine(tensors.get("head", target.head).to(dtype), None))

    def new_cache(self, rows: int, capacity: int) -> TensorSlotCache:
        """An empty cache of the module's layer.

        Raises:
            CapacityError: `capacity` exceeds the module's context.
        """
        return self._decoder.new_cache(rows, capacity)

    def forward(self, cache: TensorSlotCache, placement: Placement, states: Tensor) -> Tensor:
        """[N, H] states with the placement's tokens -> [N, H] after the norm.

        Position t holds the state after token t and token t + 1; the embedding at position 0 is zero, as in the
        models' training.
        """
        device = self._embedding.device
        embedded = F.embedding(flat(placement.tokens, placement).to(device), self._embedding)
        first = flat(placement.positions, placement).to(device).unsqueeze(1) == 0
        both = [self._embedding_norm(embedded.masked_fill(first, 0.0)), self._hidden_norm(states.to(embedded.dtype))]
        return self._norm(self._decoder.forward(cache, placement, self._project(torch.cat(both, 1))))

    def logits(self, normed: Tensor) -> Tensor:
        """[N, H] from `forward` -> [N, V]."""
        return self._head(normed)
