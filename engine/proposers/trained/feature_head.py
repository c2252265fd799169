"""Heads that continue the target's hidden states: steps of EAGLE-1 and EAGLE-3, and the rows that each has read.

A head pairs the state of a token with the embedding of the token after it; its output stands for the state of that
second token. EAGLE-1 (Li et al. 2401.15077) reads the target's last hidden state and lets the target's own matrix name
the tokens; EAGLE-3 (2503.01840) fuses several hidden states once per verified token, has an output matrix of its own
over a part of the vocabulary, and goes on with what its layer gave before the norm.

Column t of a row's cache holds the pair of the state at position t and the token at t + 1, for all committed tokens;
drafted node i sits behind them and sees its own path. Nothing that was drafted is kept: when a drafted token is
accepted, its pair is read again with the target's own state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.core.errors import ModelError
from engine.core.types import StepOutcome
from engine.heads.decoder import Decoder
from engine.heads.formats.eagle import forms
from engine.models.interface import Placement, chain_placement
from engine.models.lean_weights import LeanConfig, read_config
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import Affine
from engine.models.numerics.layouts import flat
from engine.proposers.draft_model.tree_draft import TreeLevel, place_levels
from engine.proposers.interface import Context, ProposerParts
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


@dataclass(slots=True)
class _ReaderRow:
    """One row.

    read: how many pairs are in the cache. waiting: [n, H] states whose pairs are not, and `tokens` their n tokens.
    outputs: [1 + nodes, H] what the head gave after the last pair and after the nodes read since.
    """

    read: int = 0
    waiting: Tensor | None = None
    tokens: tuple[int, ...] = ()
    outputs: Tensor | None = None


class FeatureReader:
    """Reads committed pairs and drafted nodes of several rows."""

    def __init__(self, head: FeatureHead, rows: int, capacity: int) -> None:
        self._head = head
        self._cache = head.decoder.new_cache(rows, min(capacity, head.decoder.context))
        self._rows = [_ReaderRow() for _ in range(rows)]

    def room(self, context: Context) -> int:
        """The number of nodes that can be read after the row's pairs; 0 if a pair is missing."""
        row, pairs = self._rows[context.row], len(context.history) - 1
        ready = pairs > 0 and row.read + len(row.tokens) == pairs
        return max(0, self._cache.capacity - pairs) if ready else 0

    def start(self, context: Context) -> None:
        """Read the prompt's pairs, if they fit."""
        self._rows[context.row] = _ReaderRow()
        self._keep(context, 0)
        if self.room(context):
            self._absorb([context.row], context.row)

    def observe(self, context: Context, verdict: StepOutcome, read: int = 0) -> None:  # noqa: ARG002 - nothing read is kept
        """Pairs of the root and of the accepted tokens wait for the next round."""
        self._keep(context, len(context.history) - len(verdict.emitted) - 1)

    def _keep(self, context: Context, first: int) -> None:
        row, hidden = self._rows[context.row], context.read.hidden
        row.outputs = None
        if not hidden or row.read + len(row.tokens) != first:
            return
        side_by_side = torch.cat([hidden[layer] for layer in self._head.layers], 1)
        tokens = tuple(context.history[first + 1 : first + 1 + len(side_by_side)])
        states = self._head.fuse(side_by_side[: len(tokens)])
        row.waiting = states if row.waiting is None else torch.cat([row.waiting, states])
        row.tokens += tokens

    def roots(self, contexts: Sequence[Context]) -> Mapping[int, Tensor]:
        """[V] logits after each row's newest committed token; pairs not read yet are read first."""
        self._absorb([context.row for context in contexts if self._rows[context.row].tokens])
        outputs = {}
        for other in contexts:
            last = self._rows[other.row].outputs
            assert last is not None
            outputs[other.row] = self._rows[other.row].outputs = last[:1]
        logits = self._head.logits(torch.cat(list(outputs.values())))
        return dict(zip(outputs, logits, strict=True))

    def read(self, levels: Mapping[int, TreeLevel]) -> Mapping[int, Tensor]:
        """[n, V] logits after the n new nodes of each row; the nodes before them were read earlier."""
        shifted = {row: replace(level, committed=level.committed - 1) for row, level in levels.items()}
        placement = place_levels(shifted, self._cache.rows, self._cache.trash)
        states = [self._states_before(row, levels[row]) for row in sorted(levels)]
        parts = self._run(placement, torch.cat(states), [levels[row].count for row in sorted(levels)])
        for row, part in zip(sorted(levels), parts, strict=True):
            self._rows[row].outputs = torch.cat([self._after(row), part])
        logits = torch.split(self._head.logits(torch.cat(list(parts))), [len(part) for part in parts])
        return dict(zip(sorted(levels), logits, strict=True))

    def _states_before(self, row: int, level: TreeLevel) -> Tensor:
        """[n, H] the states of the new nodes' parents."""
        after = self._after(row)
        parents = torch.tensor(level.tree.parents[level.first :], device=after.device)
        return self._head.settle(after.index_select(0, parents + 1))

    def _after(self, row: int) -> Tensor:
        outputs = self._rows[row].outputs
        assert outputs is not None
        return outputs

    def _absorb(self, rows: Sequence[int], first_row: int = 0) -> None:
        """Read the waiting pairs of some rows, in one forward."""
        if not rows:
            return
        placed = [self._rows[row] if row in rows else _ReaderRow() for row in range(first_row, 1 + max(rows))]
        placement = chain_placement(
            [item.tokens for item in placed], [item.read for item in placed], self._cache.trash, first_row
        )
        waiting = [item for item in placed if item.tokens]
        states = torch.cat([item.waiting for item in waiting if item.waiting is not None])
        parts = self._run(placement, states, [len(item.tokens) for item in waiting])
        for one, part in zip(waiting, parts, strict=True):
            one.read += len(one.tokens)
            one.waiting, one.tokens, one.outputs = None, (), part[-1:]

    def _run(self, placement: Placement, states: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
        """The decoder's outputs, by row."""
        inputs = self._head.inputs(flat(placement.tokens, placement), states)
        return torch.split(self._head.decoder.forward(self._cache, placement, inputs), list(counts))

    def finish(self, row: int) -> None:
        """Forget the row."""
        self._rows[row] = _ReaderRow()
