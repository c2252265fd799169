"""Faults of what drafts: its cache, positions, vocabulary or source. The output is right, and fewer drafts are kept.

The tokens were drawn from the reported q, so no test of the output shows these faults.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from engine.core.types import Proposal, SamplingParams
from engine.decode.seams import EngineParts, WrapModel
from engine.faults.interface import CHAINS, SAMPLED_SCENARIO, Fault, Scenario, Situation, Suits
from engine.faults.wrappers import BatchView, ChangedProposer, overwrite, with_view
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs, WrappedModel
from engine.proposers.interface import Context, Proposer

TRAINED_LENGTH: Final = 64
"""Positions of the rotary table that `DRAFT_POSITIONS_CLAMPED` does not extend."""
PRUNED: Final = 16
"""Tokens from this id on are mapped wrongly by `DRAFT_VOCABULARY_SHIFTED`."""
BRIEF: Final = Scenario(sampling=SamplingParams(max_new_tokens=24), rows=2, models="bundled")
"""Short responses at temperature 0: the prompt matters for all of them, and acceptance varies less over prompts."""


def _draft_fault(
    upstream: str, wrap: WrapModel, situation: Situation, suits: Suits = CHAINS, scenario: Scenario = SAMPLED_SCENARIO
) -> Fault:
    def apply(parts: EngineParts) -> EngineParts:
        return replace(parts, draft=lambda model: wrap(parts.draft(model)))

    return Fault(
        upstream, apply, suits, scenario, breaks="acceptance", seen_from="engine evidence", situation=situation
    )


# the draft's cache


class _OneBehind(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._written: dict[int, dict[int, int]] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        tokens = placement.tokens.clone()
        for b, length in enumerate(placement.lengths):
            written = self._written.setdefault(placement.first_row + b, {})
            for t in range(length):
                slot = int(placement.slots[b, t])
                if want.logits and t < length - 1:
                    tokens[b, t] = written.get(slot, 0)
                written[slot] = int(tokens[b, t])
        return self.inner.forward(cache, replace(placement, tokens=tokens), want)


DRAFT_ONE_BEHIND = _draft_fault("vllm-project/vllm#14649", _OneBehind, "after_kept_whole")
"""The draft model never reads the last token of a fully accepted draft.

One column back, its cache has a hole or an older token. The output is right to the last bit, because the tokens were
drawn from the reported q; after a hole the draft model knows less, and fewer of its tokens are kept.
"""


class _RewoundTooFar(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._ends: dict[int, int] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        for b, length in enumerate(placement.lengths):
            if not length:
                continue
            row, start = placement.first_row + b, int(placement.slots[b, 0])
            if want.logits and start < self._ends.get(row, 0):
                overwrite(self.inner, cache, row, dict.fromkeys(range(max(0, start - 2), start), 0))
            self._ends[row] = start + length
        return self.inner.forward(cache, placement, want)


DRAFT_REWOUND_TOO_FAR = _draft_fault("lablup/mlxcel#994, #1002", _RewoundTooFar, "after_rejection")
"""After each rejection the cache of the draft is rewound by two entries too many, which are never read again.

The draft falls behind the text. Steps after a draft that was kept whole are right.
"""


class _PromptOfBefore(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._used: set[int] = set()

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        if want.logits or placement.first_row not in self._used:
            self._used.add(placement.first_row)
            return self.inner.forward(cache, placement, want)
        # what the previous request left in these columns stays there
        return Forward(None, {})


DRAFT_CACHE_OF_PREVIOUS_REQUEST = _draft_fault(
    "none known: the draft's half of vllm-project/vllm#32118, where a slot kept recurrent state of the request before",
    _PromptOfBefore,
    "row_reused",
    Suits(shape="chain", temperature="both", needs=("several requests", "weights")),
    BRIEF,
)
"""The draft model continues from the prompt of the request that held the row before.

Its state is made once per row and not at the beginning of a request. A draft with a short memory recovers as the text
grows.
"""


class _SpoiledSteps(WrappedModel):
    """Remembers the columns that each row's last step wrote, to forget them if nothing was drafted."""

    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._fed: dict[int, tuple[SlotCache, list[int]]] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        for b, length in enumerate(placement.lengths if want.logits else ()):
            if length:
                self._fed[b] = (cache, placement.slots[b, :length].tolist())
        return self.inner.forward(cache, placement, want)

    def forget(self, row: int) -> None:
        """Spoil what the row's last step read."""
        cache, columns = self._fed.get(row, (None, []))
        if cache is not None:
            overwrite(self.inner, cache, row, dict.fromkeys(columns, 0))


class _Unfilled(ChangedProposer):
    def __init__(self, inner: Proposer, model: _SpoiledSteps) -> None:
        super().__init__(inner)
        self._model = model

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        proposals = super().propose(contexts)
        for context, proposal in zip(contexts, proposals, strict=True):
            if not len(proposal.tree):
                self._model.forget(context.row)
        return proposals


def _unfilled(parts: EngineParts) -> EngineParts:
    built: list[_SpoiledSteps] = []

    def draft(model: TargetModel) -> TargetModel:
        built[:] = [_SpoiledSteps(parts.draft(model))]
        return built[0]

    return replace(parts, draft=draft, proposer=lambda inner: _Unfilled(parts.proposer(inner), built[0]))


DRAFT_CACHE_NOT_FILLED = Fault(
    "vllm-project/vllm-metal#716",
    _unfilled,
    CHAINS,
    Scenario(options={"stop_below": 0.3}),
    breaks="acceptance",
    seen_from="engine evidence",
    situation="after_nothing_drafted",
)
"""A step without a draft leaves a hole in the cache of the draft model, where its committed tokens belong.

The proposer returns early, before it reads the tokens. An engine that drafts in every step is right.
"""

# positions and vocabulary


class _Clamped(WrappedModel):
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        positions = placement.positions.clamp(max=TRAINED_LENGTH)
        return self.inner.forward(cache, replace(placement, positions=positions), want)


DRAFT_POSITIONS_CLAMPED = _draft_fault(
    "kekzl/imp#913, sgl-project/sglang#10787",
    _Clamped,
    "context_medium",
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, max_new_tokens=128)),
)
"""The position ids of the draft model end at the length that it was trained for: its rotary table is not extended.

Drafts are as good as ever in short contexts, and worse with each token beyond that length.
"""


def _move_upper(logits: Tensor) -> Tensor:
    return torch.cat([logits[..., :PRUNED], logits[..., PRUNED:].roll(1, dims=-1)], dim=-1)


class _WrongMap(WrappedModel):
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        forward = self.inner.forward(cache, placement, want)
        return forward if forward.logits is None else replace(forward, logits=_move_upper(forward.logits))


DRAFT_VOCABULARY_SHIFTED = _draft_fault(
    "NVIDIA-NeMo/Automodel#2447, verl-project/verl-SpeCo#67", _WrongMap, "rejected_first"
)
"""The table from the draft's pruned vocabulary to the target's is wrong for half of the tokens.

The q is that of the mapped tokens, so the law holds. The draft offers the neighbour of the token that it means.
"""

# the source of a copy


def _copy_from_before(parts: EngineParts, view: BatchView) -> EngineParts:
    def ask(context: Context) -> Context:
        before = view.before(context.row)
        return context if before is None else replace(context, history=[*before.history, *context.history])

    return replace(parts, proposer=lambda inner: ChangedProposer(parts.proposer(inner), ask))


COPIES_FROM_PREVIOUS_REQUEST = Fault(
    "ggml-org/llama.cpp#27852",
    with_view(_copy_from_before),
    Suits(shape="chain", temperature="both", needs=("several requests",)),
    Scenario(proposer="ngram", drafts=0, rows=2),
    breaks="safety",
    seen_from="engine evidence",
    situation="row_reused",
)
"""A proposer that copies from the text also copies from that of the request that held its row before.

The output is right. Which drafts are kept, and so the time of a step, tells something about the other request's text.
"""
