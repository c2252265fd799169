"""Faults of the target's forward pass: wrong rows, positions, masks, hidden states or numerics.

Every decision is right for the row that it sees.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from engine.core.types import Protocol, SamplingParams
from engine.faults import interface
from engine.faults.wrappers import WrappedRows, with_logits, with_placement, with_rows, with_target
from engine.models.interface import (
    Forward,
    Placement,
    SlotCache,
    TargetModel,
    WantedOutputs,
    WrappedModel,
    chain_placement,
)
from engine.sampling.transforms import TransformedRow, one_hot

TRAINED_LENGTH: Final = 64
"""The length beyond which `ROTATION_CHANGES_BEYOND_LENGTH` acts."""
COMPRESSED: Final = 4
"""The number of positions by which it moves tokens towards those before the length."""
HEAD: Final = interface.Scenario(proposer="eagle3", sampling=SamplingParams(), models="bundled")
"""A draft head at temperature 0: without randomness in the draws, acceptance rates over few prompts vary less."""

# rows of logits


TARGET_ROWS_SHIFTED = interface.Fault(
    "vllm-project/vllm#54928, #51812",
    with_logits(lambda logits, _placement: torch.cat([logits[:, :1], logits[:, :-1]], dim=1)),
    scenario=interface.COUPLED,
    situation="rejected_middle",
)
"""Every drafted token after the first is verified against the row before its own.

The rows are real ones, so each token is likely after a prefix that is one token shorter. The decisions replay: only a
row that is computed anew shows the mistake.
"""


def _repeat_last_row(logits: Tensor, placement: Placement) -> Tensor:
    changed = logits.clone()
    for b, length in enumerate(placement.lengths):
        if length > 1:
            changed[b, length - 1] = logits[b, length - 2]
    return changed


BONUS_WRONG_ROW = interface.Fault(
    "NVIDIA/TensorRT-LLM#15098",
    with_logits(_repeat_last_row),
    interface.CHAINS,
    interface.COUPLED,
    situation="bonus_token",
)
"""The bonus token is drawn from the row of the last drafted token, not from the row after it.

The end of a slice is wrong. Only steps that keep their whole draft are affected, and in a test that pools all tokens
the other steps dilute the fault.
"""


def _rotate_rows(logits: Tensor, placement: Placement) -> Tensor:
    lengths = placement.lengths
    active = [b for b, length in enumerate(lengths) if length]
    changed = logits.clone()
    if len({lengths[b] for b in active}) > 1:
        for b, other in zip(active, [active[-1], *active[:-1]], strict=True):
            count = min(lengths[b], lengths[other])
            changed[b, :count] = logits[other, :count]
    return changed


ROWS_OF_ANOTHER_REQUEST = interface.Fault(
    "vllm-project/vllm#41768, sgl-project/sglang#32666",
    with_logits(_rotate_rows),
    interface.SEVERAL,
    interface.Scenario(protocol=Protocol.GUMBEL, options={"stop_below": 0.4}),
    situation="mixed_drafts",
)
"""In a batch whose drafts differ in length, each request gets the target's rows of its neighbour.

A request that is alone, or next to drafts of its own length, is right: the output depends on the other requests of the
batch.
"""


def _round_drafted_rows(logits: Tensor, placement: Placement) -> Tensor:
    drafted = torch.tensor([length > 1 for length in placement.lengths])
    rounded = logits.to(torch.bfloat16).to(logits.dtype)
    return torch.where(drafted[:, None, None].to(logits.device), rounded, logits)


DRAFTED_ROWS_IN_BFLOAT16 = interface.Fault(
    "vllm-project/vllm#5313, #7627",
    with_logits(_round_drafted_rows),
    interface.ANY_ARM,
    interface.Scenario(protocol=Protocol.GREEDY, sampling=SamplingParams(temperature=0.0)),
    breaks="equality",
    situation="near_tie",
)
"""A step that verifies drafts computes its logits in bfloat16, a step without drafts does not.

Another shape selects another kernel. The law moves by less than any test of tokens can detect; at temperature 0 the
output changes wherever two tokens are about equally likely.
"""

# positions and masks


def _drafts_one_late(placement: Placement) -> Placement:
    # the mask follows the positions unless it is given
    positions = placement.positions.clone()
    for b, length in enumerate(placement.lengths):
        positions[b, 1:length] += 1
    return replace(placement, positions=positions, branches=placement.visible)


POSITIONS_OFF_BY_ONE = interface.Fault(
    "huggingface/transformers#30042, #30413",
    with_placement(_drafts_one_late),
    interface.Suits(temperature="both", needs=("weights",)),
    interface.Scenario(protocol=Protocol.GUMBEL, models="bundled"),
    situation="kept_whole",
)
"""The position ids of drafted tokens are one too large.

Each token attends to the right tokens, but its rotation is wrong. A scripted model knows positions only by their order,
so the fault needs a model with weights.
"""


def _compressed_beyond(placement: Placement) -> Placement:
    positions = placement.positions.clone()
    for b, length in enumerate(placement.lengths):
        if length and int(positions[b, 0]) >= TRAINED_LENGTH:
            positions[b, :length] -= COMPRESSED
    return replace(placement, positions=positions, branches=placement.visible)


ROTATION_CHANGES_BEYOND_LENGTH = interface.Fault(
    "huggingface/transformers#25104",
    with_placement(_compressed_beyond),
    interface.Suits(temperature="both", needs=("weights",)),
    interface.Scenario(protocol=Protocol.GUMBEL, models="bundled"),
    situation="context_medium",
)
"""Tokens beyond a length are rotated by another schedule than those before it, whose keys are in the cache already.

Short contexts are right. In long ones the distance between a token and the tokens before the length is wrong.
"""


def _consecutive_positions(placement: Placement) -> Placement:
    if placement.branches is None:
        return placement
    positions = placement.positions.clone()
    for b, length in enumerate(placement.lengths):
        positions[b, :length] = positions[b, 0] + torch.arange(length)
    return replace(placement, positions=positions)


TREE_POSITIONS_FLAT = interface.Fault(
    "none known: the position half of a tree mask, which every tree engine has to get right",
    with_placement(_consecutive_positions),
    interface.TREES,
    interface.COUPLED_TREE,
    situation="tree_branch",
)
"""The nodes of a tree get consecutive position ids, as if they were a chain.

A position must give the depth of its node. In a chain the two agree, so only branching drafts are wrong, and the cache
columns that they leave behind.
"""


def _see_previous_node(placement: Placement) -> Placement:
    if placement.branches is None:
        return placement
    branches = placement.branches.clone()
    for b, length in enumerate(placement.lengths):
        for t in range(2, length):
            branches[b, t, placement.slots[b, t - 1]] = True
    return replace(placement, branches=branches)


TREE_MASK_LEAKS = interface.Fault(
    "none known: what a causal mask does where a tree mask is due",
    with_placement(_see_previous_node),
    interface.TREES,
    interface.COUPLED_TREE,
    situation="tree_branch",
)
"""Each node of a tree also sees the node before it, whether or not that is its parent.

The mask is causal over the flattened tree, one column wide. Siblings see each other; chains are right.
"""

# the beginning of a response


class _ReadTwice(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._begins: set[int] = set()

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        if not want.logits:
            self._begins.add(placement.first_row)
            return self.inner.forward(cache, placement, want)
        for row in sorted(self._begins):
            root, slot = int(placement.tokens[row, 0]), int(placement.slots[row, 0])
            again = chain_placement([[root]], [slot - 1], cache.trash, first_row=row)
            self.inner.forward(cache, again, WantedOutputs(logits=False))
        self._begins.clear()
        return self.inner.forward(cache, placement, want)


PROMPT_END_READ_TWICE = interface.Fault(
    "none known: the classic off-by-one where reading the prompt and the first step meet",
    with_target(_ReadTwice),
    interface.ANY_ARM,
    interface.COUPLED,
    situation="first_token",
)
"""In the first step, the prompt's last token also takes the place of the token before it.

The prompt is read once as a whole, and its last token once more as the root of the first step, one column early. The
first tokens of a response continue another prompt; on later tokens the effect has faded.
"""


class _TrustFirstDraft(WrappedRows):
    def _given(self, row: int) -> int | None:
        begins = len(self._history) == self._n_prompt
        return self.tree.tokens[0] if row == 0 and begins and len(self.tree) else None

    def __getitem__(self, row: int) -> TransformedRow:
        transformed, given = super().__getitem__(row), self._given(row)
        return transformed if given is None else replace(transformed, p=one_hot(given, len(transformed.p)))

    def best(self, row: int) -> int:
        given = self._given(row)
        return super().best(row) if given is None else given


FIRST_TOKEN_FROM_DRAFT = interface.Fault(
    "none known: a response that begins before the first verification",
    with_rows(_TrustFirstDraft),
    interface.ANY_ARM,
    situation="rejected_first",
)
"""The first token of every response is the draft's, whatever the target computes.

It is one token per response: a test that pools all positions sees little of it.
"""

# ties


class _LastOfTies(WrappedRows):
    def best(self, row: int) -> int:
        rounded = torch.from_numpy(self[row].scores).to(torch.bfloat16)
        return int((rounded == rounded.max()).nonzero()[-1])


TIES_BROKEN_DIFFERENTLY = interface.Fault(
    "vllm-project/vllm#7627",
    with_rows(_LastOfTies),
    interface.Suits(protocols=(Protocol.GREEDY,), temperature="greedy"),
    interface.Scenario(protocol=Protocol.GREEDY, sampling=SamplingParams(logit_bias=interface.AWAY_FROM_ZERO)),
    breaks="equality",
    situation="near_tie",
)
"""Verification takes the last of the tokens that tie in bfloat16, plain decoding the first of the exact maxima.

Both are an argmax of the same row. The output differs wherever two tokens are about equally likely, and the text reads
equally well.
"""

# hidden states for draft heads


class _LayersBefore(WrappedModel):
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        before = {layer: max(0, layer - 1) for layer in want.hidden}
        forward = self.inner.forward(cache, placement, replace(want, hidden=tuple(sorted(set(before.values())))))
        return replace(forward, hidden={layer: forward.hidden[other] for layer, other in before.items()})


WRONG_AUX_LAYERS = interface.Fault(
    "sgl-project/sglang#21272, vllm-project/vllm#11672",
    with_target(_LayersBefore),
    interface.Suits(temperature="both", needs=("weights", "hidden states")),
    HEAD,
    breaks="acceptance",
    seen_from="engine evidence",
    situation="rejected_first",
)
"""A draft head reads the hidden states of the layers before those that it was trained on.

The output is right, because the target decides. The head never learned to read these states, and fewer drafts are kept.
"""


class _LateStates(WrappedModel):
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        forward = self.inner.forward(cache, placement, want)
        late = {layer: torch.cat([states[:, :1], states[:, :-1]], dim=1) for layer, states in forward.hidden.items()}
        return replace(forward, hidden=late)


HIDDEN_STATES_SHIFTED = interface.Fault(
    "sgl-project/sglang#26329, #28254",
    with_target(_LateStates),
    interface.Suits(temperature="both", needs=("weights", "hidden states")),
    HEAD,
    breaks="acceptance",
    seen_from="engine evidence",
    situation="rejected_first",
)
"""A draft head gets the target's hidden states one token late.

The output is right, but fewer drafts are kept: each token gets the states of its predecessor.
"""
