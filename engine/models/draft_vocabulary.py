"""A draft whose number of logits differs from the target's, although both have one tokenizer.

Models pad their vocabularies to sizes that suit a device, and a family's members to different ones. Ids beyond the
tokenizer's stand for no text, so a draft proposes none of them that the target lacks or that it lacks itself.
"""

from dataclasses import replace

import torch

from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs, WrappedModel


class PaddedDraft(WrappedModel):
    """The model with `vocabulary` logits: the first ones of its own, and the smallest number where it has none.

    A token that the model has no embedding for is read as its last id: such a token has no text for either model.
    """

    def __init__(self, inner: TargetModel, vocabulary: int) -> None:
        super().__init__(inner)
        self.vocabulary = vocabulary

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """The model's outputs, with logits [B, T, vocabulary]."""
        own = self.inner.vocabulary
        known = replace(placement, tokens=placement.tokens.clamp(max=own - 1)) if own < self.vocabulary else placement
        done = self.inner.forward(cache, known, want)
        if done.logits is None:
            return done
        missing, smallest = max(0, self.vocabulary - own), torch.finfo(done.logits.dtype).min
        padded = torch.nn.functional.pad(done.logits[..., : self.vocabulary], (0, missing), value=smallest)
        return Forward(padded, done.hidden)
