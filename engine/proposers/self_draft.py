"""Drafting with a part of the target, in the loop's own cache: its first layers, or all but some of its sublayers.

After every step the target's cache holds all committed tokens but the newest. Drafting feeds that token at its column
and continues in the scratch columns after it; the drafted part reads the committed keys and values, which are the whole
target's. The verifying forward begins at the newest token too and overwrites all of these columns, so the target never
reads values that the part wrote. No second model, no training and no cache of a draft's own are needed.

Early exit (LayerSkip, Elhoushi et al. 2404.16710): the hidden state after layer E goes through the target's final norm
and head. Any checkpoint works; one trained with early exits drafts better. Layer skip (Draft & Verify, Zhang et al.
2309.08168): attention and feed-forward sublayers are left out by layer; the residual stream passes them by. Which
sublayers can be spared depends on the target: `engine.tools.find_skips` searches for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.errors import InvalidRequest
from engine.core.types import Proposal
from engine.models.interface import Sublayers, WantedOutputs, chain_placement, to_numpy
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings, drafted_chains
from engine.proposers.interface import (
    Context,
    ProposerFacts,
    ProposerParts,
    StatelessProposer,
    SteadyDrafts,
    TargetSide,
)
from engine.proposers.options import read


class SelfDraftProposer(StatelessProposer):
    """Autoregressive drafting with a part of the target. The loop reads the prompt, and writes what is committed."""

    def __init__(
        self, name: str, parts: ProposerParts, side: TargetSide, part: Sublayers, options: Mapping[str, Any]
    ) -> None:
        self._model, self._cache = side.model, side.cache
        self._want = WantedOutputs(part=part)
        self._how = DrawSettings.of(parts, options["stop_below"])
        steady = None if options["stop_below"] else SteadyDrafts(side.model.context)
        self.facts = ProposerFacts(name, state="none", options=options, steady=steady)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of up to the rows' budgets."""
        return drafted_chains(contexts, self._advance)

    def _advance(self, waiting: Mapping[int, ChainDraft]) -> None:
        """One forward of the part for all rows that want another token."""
        histories = [waiting[row].history if row in waiting else [] for row in range(1 + max(waiting))]
        newest, starts = [history[-1:] for history in histories], [max(0, len(history) - 1) for history in histories]
        placement = chain_placement(newest, starts, self._cache.trash)
        logits = self._model.forward(self._cache, placement, self._want).logits
        assert logits is not None
        for row, one in waiting.items():
            one.extend(to_numpy(logits[row, 0]), self._how)


def require_divisible(kind: str, parts: ProposerParts) -> TargetSide:
    """The target, if it can run in part. Raises InvalidRequest: the target is missing, or cannot run in part."""
    if parts.target is None:
        raise InvalidRequest(f"proposer {kind} needs the target and its cache")
    if not parts.target.model.divisible:
        raise InvalidRequest(f"proposer {kind} needs a target that can run in part; use loader: lean")
    return parts.target


class EarlyExitProposer(SelfDraftProposer):
    """Drafts with the layers before the exit."""

    @classmethod
    def build(cls, parts: ProposerParts) -> EarlyExitProposer:
        """From the options `exit_layer` (0: half of the layers, at least one) and `stop_below`.

        Raises:
            InvalidRequest: an unknown option, a target that cannot run in part, or an exit after its end.
        """
        options = read("early_exit", parts.options)
        side = require_divisible("early_exit", parts)
        layers = side.model.divisible
        exit_layer = options["exit_layer"] or max(1, layers // 2)
        if exit_layer > layers:
            raise InvalidRequest(
                f"proposer early_exit: option exit_layer is {exit_layer}, but the target has {layers} layers"
            )
        kept = tuple(range(exit_layer))
        return cls("early_exit", parts, side, Sublayers(kept, kept), {**options, "exit_layer": exit_layer})


@dataclass(frozen=True, slots=True)
class SkipSet:
    """The layers, from 0 and ascending, whose attention or feed-forward is left out."""

    attention: tuple[int, ...] = ()
    ffn: tuple[int, ...] = ()

    @classmethod
    def read(cls, attention: str, ffn: str) -> SkipSet:
        """From the proposer's options."""
        return cls(_layers(attention), _layers(ffn))

    def __len__(self) -> int:
        return len(self.attention) + len(self.ffn)

    def part(self, layers: int) -> Sublayers:
        """The part that remains of a model of `layers` layers."""
        return Sublayers(
            tuple(index for index in range(layers) if index not in self.attention),
            tuple(index for index in range(layers) if index not in self.ffn),
        )

    def options(self) -> Mapping[str, str]:
        """The proposer's options for this set."""
        return {"skip_attention": ",".join(map(str, self.attention)), "skip_ffn": ",".join(map(str, self.ffn))}


class LayerSkipProposer(SelfDraftProposer):
    """Drafts with the sublayers that are not skipped."""

    @classmethod
    def build(cls, parts: ProposerParts) -> LayerSkipProposer:
        """From the options `skip_attention`, `skip_ffn` and `stop_below`.

        Raises:
            InvalidRequest: an unknown option, nothing to skip, a target that cannot run in part, or a
                layer that it does not have.
        """
        options = read("layer_skip", parts.options)
        skips = SkipSet.read(options["skip_attention"], options["skip_ffn"])
        side = require_divisible("layer_skip", parts)
        layers = side.model.divisible
        _require_layers(skips, layers)
        kept = {**skips.options(), "stop_below": options["stop_below"]}
        return cls("layer_skip", parts, side, skips.part(layers), kept)


def _layers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(word) for word in text.split(",") if word.strip()}))


def _require_layers(skips: SkipSet, layers: int) -> None:
    for key, named in (("skip_attention", skips.attention), ("skip_ffn", skips.ffn)):
        if named and named[-1] >= layers:
            raise InvalidRequest(
                f"proposer layer_skip: option {key} names layer {named[-1]}, but the target's are 0 to {layers - 1}"
            )
