"""The target without some of its sublayers drafts for itself (Draft & Verify, Zhang et al. 2309.08168).

Attention and feed-forward sublayers are left out by layer; the residual stream passes
them by. The proposer needs no second model, no training and no cache of its own. Which sublayers can be
spared depends on the target: `engine.tools.find_skips` searches for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.errors import InvalidRequest
from engine.core.types import QKind
from engine.models.interface import Sublayers
from engine.proposers.draft_model.chain_draft import DrawSettings
from engine.proposers.interface import ProposerFacts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.parts import ProposerParts
from engine.proposers.self_draft.self_draft import SelfDraftProposer, require_divisible


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
        facts = ProposerFacts(
            "layer_skip",
            shape="chain",
            q_kind=QKind.FULL,
            can_couple=True,
            state="none",
            options={**skips.options(), "stop_below": options["stop_below"]},
            steady=None if options["stop_below"] else SteadyDrafts(side.model.context),
        )
        return cls(side, skips.part(layers), DrawSettings.of(parts, options["stop_below"]), facts)


def _layers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(word) for word in text.split(",") if word.strip()}))


def _require_layers(skips: SkipSet, layers: int) -> None:
    for key, named in (("skip_attention", skips.attention), ("skip_ffn", skips.ffn)):
        if named and named[-1] >= layers:
            raise InvalidRequest(
                f"proposer layer_skip: option {key} names layer {named[-1]}, but the target's are 0 to {layers - 1}"
            )
