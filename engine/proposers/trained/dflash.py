"""DFlash: all tokens of a draft in one pass of a block drafter.

The block is the newest committed token and masks. It always has its full length, because its rows see one another.
Position t of the context holds the target's states after token t. Each position's logits are a function of the
committed tokens, so q factorises; what is drawn at one position reaches another only through the request's penalties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.core.errors import ModelError
from engine.core.types import Proposal, StepOutcome
from engine.heads.dflash import BlockDecoder
from engine.models.interface import Placement, chain_placement, to_numpy
from engine.models.lean_weights import read_config
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import Affine
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings, limited
from engine.proposers.interface import Context, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.trained.fitted_head import FittedHead, fitted_head


class BlockDrafter:
    """A drafter with its cache, and the target's newly read states of each row."""

    def __init__(self, parts: ProposerParts, fitted: FittedHead) -> None:
        settings, weights = fitted.head.settings, fitted.model.weights
        config = read_config(fitted.head.config, f"{fitted.head.layout} head")
        self.hidden: tuple[int, ...] = settings["states"]
        self.most = settings["block"] - 1
        """Most tokens that one pass drafts."""
        self._masks = [settings["mask"]] * self.most
        self.context = config.context
        """Most tokens that one pass sees, its whole block included."""
        self._decoder = BlockDecoder(config, fitted.head.tensors, weights.embedding.dtype)
        self._cache = self._decoder.new_cache(parts.rows, parts.capacity + settings["block"])
        self._embedding = weights.embedding
        self._head = FastNumerics().matrix(Affine(weights.head, None))
        self._nothing = weights.embedding.new_empty(0, config.hidden * len(self.hidden))
        self._unread = [self._nothing] * parts.rows
        self._read = [0] * parts.rows

    def room(self, context: Context) -> int:
        """The number of tokens that can be drafted: the whole block or, beyond the drafter's context, 0."""
        return self.most if len(context.history) + self.most <= self.context else 0

    def start(self, context: Context) -> None:
        """Keep the prompt's states."""
        self._read[context.row], self._unread[context.row] = 0, self._nothing
        self._keep(context, len(context.history) - 1)

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Keep the states of the root and of the accepted tokens."""
        self._keep(context, len(verdict.emitted))

    def finish(self, row: int) -> None:
        """Forget the row."""
        self._read[row], self._unread[row] = 0, self._nothing

    def _keep(self, context: Context, most: int) -> None:
        hidden = context.read.hidden
        if hidden:
            states = torch.cat([hidden[layer][:most] for layer in self.hidden], 1)
            self._unread[context.row] = torch.cat([self._unread[context.row], states])

    def logits(self, contexts: Sequence[Context]) -> Mapping[int, Tensor]:
        """By row, [block - 1, V]: row i is about the i-th token after the newest one."""
        active = {context.row: context for context in sorted(contexts, key=lambda item: item.row)}
        self._read_context(list(active))
        rows = range(1 + max(active))
        blocks = [[active[row].history[-1], *self._masks] if row in active else [] for row in rows]
        starts = [len(active[row].history) - 1 if row in active else 0 for row in rows]
        placement = whole(chain_placement(blocks, starts, self._cache.trash), starts, len(self._masks) + 1)
        tokens = torch.tensor([token for block in blocks for token in block], device=self._embedding.device)
        out = self._decoder.forward(self._cache, placement, F.embedding(tokens, self._embedding))
        split = out.view(len(active), self.most + 1, -1)[:, 1:]
        scores = self._head(split.flatten(0, 1)).view(len(active), self.most, -1)
        return dict(zip(active, scores, strict=True))

    def _read_context(self, active: Sequence[int]) -> None:
        """Write the keys and values of all states that were kept."""
        counts = [len(self._unread[row]) if row in active else 0 for row in range(1 + max(active))]
        if not any(counts):
            return
        starts = [self._read[row] for row in range(len(counts))]
        placement = chain_placement([[0] * count for count in counts], starts, self._cache.trash)
        fed = [self._unread[row] for row, count in enumerate(counts) if count]
        self._decoder.read(self._cache, placement, torch.cat(fed))
        for row, count in enumerate(counts):
            if count:
                self._read[row], self._unread[row] = self._read[row] + count, self._nothing


class DFlashProposer(BlockDrafter):
    """Drafts chains of up to a block's masks."""

    def __init__(self, parts: ProposerParts, fitted: FittedHead, how: DrawSettings) -> None:
        super().__init__(parts, fitted)
        self._how = how
        self.facts = ProposerFacts(
            "dflash",
            hidden=self.hidden,
            options={"stop_below": how.stop_below},
            steady=None if how.stop_below else SteadyDrafts(self.context - self.most, self.most),
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> DFlashProposer:
        """From a head and the option `stop_below`."""
        options = read("dflash", parts.options)
        return cls(parts, block_head("dflash", parts), DrawSettings.of(parts, options["stop_below"]))

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of up to the rows' budgets."""
        rows = {context.row: ChainDraft(limited(context, self.room(context))) for context in contexts}
        drafting = [other.context for other in rows.values() if other.unread]
        for row, scores in (self.logits(drafting) if drafting else {}).items():
            for logits in scores:
                if rows[row].unread:
                    rows[row].extend(to_numpy(logits), self._how)
        return [rows[context.row].proposal() for context in contexts]


def block_head(kind: str, parts: ProposerParts) -> FittedHead:
    """The parts' head.

    Raises:
        ModelNeeded: there is no head.
        InvalidRequest: a head of another family, or a target that is not a lean model.
        ModelError: a head that does not fit the target.
    """
    fitted = fitted_head(kind, parts, ("dflash",))
    wanted, layers = fitted.head.settings["target_layers"], fitted.model.config.layers
    if wanted != layers:
        raise ModelError(f"dflash head: num_target_layers is {wanted}, the target has {layers}; use its own head")
    return fitted


def whole(placement: Placement, starts: Sequence[int], block: int) -> Placement:
    """Every row of a block sees the context and the whole block."""
    ends = torch.tensor(starts) + block
    seen = (torch.arange(placement.span) < ends[:, None])[:, None].expand(-1, placement.tokens.shape[1], -1)
    return replace(placement, branches=seen)
