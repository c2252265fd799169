"""Heads that continue the target's hidden states: one step of EAGLE-1 and of EAGLE-3, as one object.

A head pairs the state of a token with the embedding of the token after it; its output stands for the state of that
second token. EAGLE-1 (Li et al. 2401.15077) reads the target's last hidden state and lets the target's own matrix name
the tokens; EAGLE-3 (2503.01840) fuses several hidden states once per verified token, has an output matrix of its own
over a part of the vocabulary, and goes on with what its layer gave before the norm.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.core.errors import ModelError
from engine.heads.decoder import Decoder
from engine.heads.formats.eagle import forms
from engine.models.lean_weights import LeanConfig, read_config
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import Affine
from engine.proposers.interface import ProposerParts
from engine.proposers.trained.fitted_head import FittedHead, fitted_head

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class FeatureHead:
    """A head, ready to run.

    layers: the target's hidden states that it reads, by HF's count.
    fuse: [n, len(layers) * H], side by side -> [n, H] states.
    join: [n, 2 H], embedding first -> what the decoder reads.
    settle: the decoder's output -> the next state. logits: the decoder's output -> [n, V], -inf for a token that the
        head does not know.
    """

    layers: tuple[int, ...]
    embedding: Tensor
    decoder: Decoder
    fuse: Map
    join: Map
    settle: Map
    logits: Map

    def inputs(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Of n pairs: the tokens [n] and the states [n, H] of the tokens before them."""
        return self.join(torch.cat([F.embedding(tokens.to(self.embedding.device), self.embedding), states], 1))


def feature_head(kind: str, parts: ProposerParts, families: tuple[str, ...]) -> FeatureHead:
    """The parts' head, of one of the `families`, in the target's dtype, for a proposer of this `kind`.

    Raises:
        InvalidRequest: a head of another family, or a target that is not a lean model.
        ModelNeeded: no head.
        ModelError: a head that does not fit the target.
    """
    fitted = fitted_head(kind, parts, families)
    return _eagle(fitted) if fitted.head.family == "eagle" else _eagle3(fitted)


def _eagle(fitted: FittedHead) -> FeatureHead:
    """EAGLE-1: `fc` joins embedding and state; the output is the next state and needs no norm."""
    tensors, target, numerics = fitted.head.tensors, fitted.model, FastNumerics()
    weights, dtype, config = target.weights, target.dtype, _config(fitted)
    bias = tensors.get("fc.bias")
    return FeatureHead(
        layers=(target.config.layers,),
        embedding=tensors.get("embedding", weights.embedding).to(dtype),
        decoder=Decoder(config, tensors, forms(config.layers), dtype),
        fuse=_same,
        join=numerics.matrix(Affine(tensors["fc.weight"].to(dtype), None if bias is None else bias.to(dtype))),
        settle=_same,
        logits=numerics.matrix(Affine(weights.head, None)),
    )


def _eagle3(fitted: FittedHead) -> FeatureHead:
    """EAGLE-3: `fc` fuses, the layer joins by itself."""
    tensors, settings, numerics = fitted.head.tensors, fitted.head.settings, FastNumerics()
    dtype, config = fitted.model.dtype, _config(fitted)
    norm = numerics.norm(tensors["norm.weight"].to(dtype), config.eps, config.hidden)
    named = numerics.matrix(Affine(tensors["lm_head.weight"].to(dtype), None))
    ids = tensors.get("target_ids")

    def logits(out: Tensor) -> Tensor:
        known = named(norm(out))
        if ids is None:
            return known
        return known.new_full((len(known), config.vocabulary), -torch.inf).index_copy_(1, ids, known)

    return FeatureHead(
        layers=_layers(fitted),
        embedding=tensors.get("embedding", fitted.model.weights.embedding).to(dtype),
        decoder=Decoder(config, tensors, settings["forms"], dtype),
        fuse=numerics.matrix(Affine(tensors["fc.weight"].to(dtype), None)),
        join=_same,
        settle=norm if settings["norm_output"] else _same,
        logits=logits,
    )


def _config(fitted: FittedHead) -> LeanConfig:
    return read_config(fitted.head.config, f"{fitted.head.layout} head")


def _same(rows: Tensor) -> Tensor:
    return rows


def _layers(fitted: FittedHead) -> tuple[int, ...]:
    """The head's own choice, or the published one by the target's depth: 2, the middle, and 3 before the end."""
    depth, name = fitted.model.config.layers, f"{fitted.head.layout} head"
    layers: tuple[int, ...] = fitted.head.settings["layers"] or (2, depth // 2, depth - 3)
    wrong = [layer for layer in layers if not 0 <= layer <= depth]
    if wrong:
        raise ModelError(f"{name}: it reads hidden state {wrong[0]}, the target's are 0 to {depth}; use its own target")
    width = fitted.head.tensors["fc.weight"].shape[1]
    if width != len(layers) * fitted.model.config.hidden:
        raise ModelError(
            f"{name}: tensor 'fc.weight' reads {width} numbers, {len(layers)} hidden states of the target have "
            f"{len(layers) * fitted.model.config.hidden}; use its own target"
        )
    return layers
