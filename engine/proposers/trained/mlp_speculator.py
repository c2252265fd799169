"""An MLP speculator (Wertheimer et al. 2404.19124): a short recurrence over hidden state and tokens.

Stage i turns the state and the newest token into the next state, and the state into logits. The first state is the
target's last hidden state, after the final norm, of the token before the newest; the first token is the newest one.
Unlike Medusa's heads, each stage sees the tokens that earlier stages drew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.core.types import DraftRule, Proposal, QKind
from engine.models.interface import to_numpy
from engine.models.numerics.interface import Affine
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings
from engine.proposers.interface import Context, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.trained.fitted_head import FittedHead, LastStateProposer, fitted_head

EPS: Final = 1e-6


class Speculator:
    """The stages' arithmetic, in the target's dtype and numerics mode.

    state_i = gelu(norm_i(proj_i state_{i-1} + c emb_i[token])), with c the weights' quotient: w_state = .5^(.5 / n),
    w_emb = sqrt((1 - w_state^2) I / 2) for n stages of inner size I. The norm makes the common factor vanish.
    """

    def __init__(self, side: FittedHead) -> None:
        settings = side.head.settings
        self.stages: int = settings["stages"]
        self._scaled: bool = settings["scale_input"]
        keep = 0.5 ** (0.5 / self.stages)
        self._weight = math.sqrt((1 - keep**2) * settings["inner"] / 2) / keep
        self._norms = [
            Affine(side.tensor(f"norm.{i}.weight"), side.tensor(f"norm.{i}.bias")) for i in range(self.stages)
        ]
        self._embeddings = side.prepared(self._names("emb"), side.tensor)
        matrix = side.model.numerics.matrix
        self._projections, self._outputs = (
            side.prepared(self._names(kind), lambda name: matrix(Affine(side.tensor(name), None)))
            for kind in ("proj", "head")
        )

    def _names(self, kind: str) -> list[str]:
        return [f"{kind}.{stage}" for stage in range(self.stages)]

    def enter(self, states: Tensor) -> Tensor:
        """The target's states [N, H] as the first stage takes them."""
        return _normed(states) / math.sqrt(2) if self._scaled else states

    def advance(self, stage: int, states: Tensor, tokens: Sequence[int]) -> Tensor:
        """[N, I] the next states, after the newest token of each row."""
        read = F.embedding(torch.tensor(tokens, device=states.device), self._embeddings[stage])
        mixed = _normed(self._projections[stage](states) + self._weight * read)
        norm = self._norms[stage]
        assert norm.bias is not None
        return F.gelu(mixed * norm.weight + norm.bias)

    def logits(self, stage: int, states: Tensor) -> Tensor:
        """[N, V] for the token that a stage drafts."""
        return self._outputs[stage](states)


def _normed(x: Tensor) -> Tensor:
    """The rows over their root mean square; a norm without weight."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


class MlpSpeculatorProposer(LastStateProposer):
    """Drafts chains of at most as many tokens as there are stages."""

    def __init__(self, parts: ProposerParts, side: FittedHead, options: Mapping[str, Any]) -> None:
        self._speculator = Speculator(side)
        soft = options["draw"] == "soft"
        rule = parts.rule if soft else DraftRule.GREEDY
        self._how = DrawSettings(rule, parts.draw, parts.eos_ids, options["stop_below"], parts.unsure)
        layer = side.model.config.layers
        super().__init__(layer)
        self.facts = ProposerFacts(
            "mlp_speculator",
            q_kind=QKind.FULL if soft else QKind.ONE_HOT,
            can_couple=soft,
            hidden=(layer,),
            options=options,
            steady=None if options["stop_below"] else SteadyDrafts(side.model.context, self._speculator.stages),
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> MlpSpeculatorProposer:
        """From an MLP speculator and the options `draw` and `stop_below`."""
        options = read("mlp_speculator", parts.options)
        return cls(parts, fitted_head("mlp_speculator", parts), options)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One chain per row, none where nothing was read yet."""
        drafted = [ChainDraft(context) for context in contexts]
        live = [item for item in drafted if item.unread and self.knows(item.context.row)]
        if live:
            states = self._speculator.enter(self.stacked([item.context.row for item in live]))
            for stage in range(self._speculator.stages):
                states = self._speculator.advance(stage, states, [item.history[-1] for item in live])
                for one, logits in zip(live, to_numpy(self._speculator.logits(stage, states)), strict=True):
                    one.extend(logits, self._how)
                kept = [place for place, item in enumerate(live) if item.unread]
                if not kept:
                    break
                live, states = [live[place] for place in kept], states[kept]
        return [item.proposal() for item in drafted]
