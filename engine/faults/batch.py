"""Faults of batches: state of a row's previous request, parameters of neighbours, and indices after requests finish.

A request that runs alone, in a row that nobody held before it, is right.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.core.types import Floats, Proposal, Protocol, SamplingParams, Tree
from engine.decode.seams import EngineParts
from engine.faults import wrappers
from engine.faults.interface import COUPLED, SEVERAL, ChangeParts, Fault, Scenario, Suits
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs, WrappedModel
from engine.proposers.interface import Context
from engine.sampling.rng import Purpose, Randomness

SAMPLED_SEVERAL: Final = Suits(needs=("several requests",))
UNLIKE: Final = Scenario(
    sampling=SamplingParams(temperature=1.0), beside=SamplingParams(temperature=0.7, top_k=8, top_p=0.9)
)
"""Requests at temperature 1, each next to one at a lower temperature with truncation."""

# parameters of neighbours


def with_parameters(params: Callable[[Context, wrappers.BatchView], SamplingParams]) -> ChangeParts:
    """Transform the rows of each request with other parameters than its own."""

    def change(parts: EngineParts, view: wrappers.BatchView) -> EngineParts:
        def of_step(step: wrappers.Step) -> wrappers.ChangeInputs:
            context = view.of(step.history)
            own = None if context is None else params(context, view)
            return lambda inputs: inputs if own is None else replace(inputs, params=own)

        return wrappers.with_inputs_by_step(of_step)(parts)

    return wrappers.with_view(change)


PARAMETERS_OF_FIRST_ROW = Fault(
    "Blaizzy/mlx-vlm#1647",
    with_parameters(lambda _context, view: next(iter(view.active.values())).request.sampling),
    SAMPLED_SEVERAL,
    UNLIKE,
    situation="mixed_parameters",
)
"""The sampling parameters of the first request of the batch hold for all its requests.

One sampler is made for the batch, from the request that came first. A batch of equal requests is right.
"""


def _top_k_of_others(context: Context, view: wrappers.BatchView) -> SamplingParams:
    own = context.request.sampling
    others = (other.request.sampling.top_k for other in view.active.values())
    return own if own.top_k else replace(own, top_k=next((top_k for top_k in others if top_k), 0))


TOP_K_OF_NEIGHBOUR = Fault(
    "vllm-project/vllm#14301", with_parameters(_top_k_of_others), SAMPLED_SEVERAL, UNLIKE, situation="mixed_parameters"
)
"""A request without top-k gets the top-k of another request of its batch.

The array of limits is filled for the requests that have one, and read for all.
"""


def _bad_words_by_rank(context: Context, view: wrappers.BatchView) -> SamplingParams:
    active = list(view.active.values())
    banned = [other.request.sampling.bad_words for other in active if other.request.sampling.bad_words]
    rank = [other.row for other in active].index(context.row)
    return replace(context.request.sampling, bad_words=banned[rank] if rank < len(banned) else ())


BAD_WORDS_OF_FIRST_ROWS = Fault(
    "vllm-project/vllm#31908",
    with_parameters(_bad_words_by_rank),
    Suits(temperature="both", needs=("masks", "several requests")),
    Scenario(
        sampling=SamplingParams(temperature=1.0, bad_words=((1,), (8,), (14,), (19,))),
        beside=SamplingParams(temperature=1.0),
    ),
    situation="mixed_parameters",
)
"""The bad words of a batch are applied to its first rows, as many as there are requests with bad words.

A batch in which every request has bad words is right, and so is one where those requests come first.
"""


def _padding_counted(parts: EngineParts, view: wrappers.BatchView) -> EngineParts:
    def of_step(step: wrappers.Step) -> wrappers.ChangeInputs:
        longest = max((len(other.history) for other in view.active.values()), default=0)
        padding = [0] * max(0, longest - len(step.history))
        return lambda inputs: replace(inputs, committed=[*inputs.committed, *padding])

    return wrappers.with_inputs_by_step(of_step)(parts)


PADDING_PENALISED = Fault(
    "huggingface/text-generation-inference#1765",
    wrappers.with_view(_padding_counted),
    Suits(temperature="both", needs=("penalties", "several requests")),
    Scenario(sampling=SamplingParams(temperature=1.0, frequency_penalty=0.5)),
    situation="mixed_lengths",
)
"""The padding of the shorter requests of a batch counts as output of token 0, which is then penalised.

The longest request is right, and so is a batch of equal lengths.
"""


def _with_longest_positions(placement: Placement) -> Placement:
    active = [b for b, length in enumerate(placement.lengths) if length]
    longest = max(int(placement.positions[b, 0]) for b in active)
    positions = placement.positions.clone()
    for b in active:
        positions[b, : placement.lengths[b]] += longest - int(positions[b, 0])
    return replace(placement, positions=positions)


POSITIONS_OF_LONGEST_ROW = Fault(
    "unslothai/unsloth#4078, #3795",
    wrappers.with_placement(_with_longest_positions),
    Suits(shape="chain", temperature="both", needs=("several requests",)),
    COUPLED,
    situation="mixed_lengths",
)
"""All requests of a batch get the position ids of the longest one.

The mask follows the positions, so the drafts of a shorter request also see the drafts after them.
"""


def _pad_to_longest(contexts: Sequence[Context], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
    longest = max((len(proposal.tree) for proposal in proposals), default=0)
    return [
        _padded(proposal, min(longest, context.budget) - len(proposal.tree))
        for context, proposal in zip(contexts, proposals, strict=True)
    ]


def _padded(proposal: Proposal, count: int) -> Proposal:
    if count <= 0 or proposal.q is None or proposal.uniforms is None:
        return proposal
    return replace(
        proposal,
        tree=Tree.chain((*proposal.tree.tokens, *[0] * count)),
        q=np.concatenate([proposal.q, np.repeat(proposal.q[-1:], count, axis=0)]),
        uniforms=np.concatenate([proposal.uniforms, np.repeat(proposal.uniforms[-1:], count)]),
    )


DRAFTS_PADDED_TO_LONGEST = Fault(
    "vllm-project/vllm#46533",
    wrappers.with_proposals(lambda: _pad_to_longest),
    Suits(shape="chain", needs=("several requests",)),
    Scenario(options={"stop_below": 0.4}),
    situation="mixed_drafts",
)
"""Drafts are padded with token 0 to the longest draft of the batch, and the padding is verified like a draft.

It has the q of the last token, from which it was not drawn. Upstream a placeholder could be accepted.
"""

# a row's previous request


class _StaleRoot(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._last: dict[int, int] = {}
        self._begins: set[int] = set()

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        if not want.logits:
            self._begins.add(placement.first_row)
            return self.inner.forward(cache, placement, want)
        tokens = placement.tokens.clone()
        for b, length in enumerate(placement.lengths):
            if length and b in self._begins:
                tokens[b, 0] = self._last.get(b, int(tokens[b, 0]))
            if length:
                self._last[b] = int(placement.tokens[b, 0])
        self._begins.clear()
        return self.inner.forward(cache, replace(placement, tokens=tokens), want)


LAST_TOKEN_OF_PREVIOUS_REQUEST = Fault(
    "vllm-project/vllm#39833",
    wrappers.with_target(_StaleRoot),
    SEVERAL,
    Scenario(protocol=Protocol.GUMBEL, rows=2),
    situation="row_reused",
)
"""The first step of a request reads the last token of the request that held its row before, not that of its prompt.

The first request of every row is right, so a run with no more requests than rows shows nothing.
"""


class _NumbersOfRow(Randomness):
    def __init__(self, seed: int, stream: int, view: wrappers.BatchView) -> None:
        super().__init__(seed, stream)
        self._view = view

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] the numbers of the first request that held the row."""
        rows = (row for row, context in self._view.active.items() if context.randomness is self)
        first = next((self._view.first(row).randomness for row in rows), self)
        return Randomness.uniforms(first, position, purpose, count, index)


NUMBERS_OF_THE_ROW = Fault(
    "tenstorrent/vllm-tt-plugin#33",
    wrappers.with_view(lambda parts, view: replace(parts, numbers=partial(_NumbersOfRow, view=view))),
    Suits((Protocol.CHAIN, Protocol.GUMBEL), needs=("several requests",)),
    Scenario(rows=2),
    breaks="replay",
    seen_from="engine evidence",
    situation="row_reused",
)
"""The generator of random numbers belongs to the row: later requests draw the numbers of the row's first request.

Every response follows the right law, but a request with a seed does not get the response of that seed.
"""


class _LastSeed(Randomness):
    def __init__(self, seed: int, stream: int, cohort: list[Randomness]) -> None:
        super().__init__(seed, stream)
        self._cohort, self._first = cohort, -1
        cohort.append(self)

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] at the request's first position the numbers of the request that was admitted last with it."""
        self._first = position if self._first < 0 else self._first
        source = self._cohort[-1] if position == self._first else self
        return Randomness.uniforms(source, position, purpose, count, index)


def _with_last_seed(parts: EngineParts, view: wrappers.BatchView) -> EngineParts:
    cohorts: dict[int, list[Randomness]] = {}

    def numbers(seed: int, stream: int) -> Randomness:
        for step in [step for step in cohorts if step != view.steps]:
            del cohorts[step]
        return _LastSeed(seed, stream, cohorts.setdefault(view.steps, []))

    return replace(parts, numbers=numbers)


LAST_SEED_WINS = Fault(
    "lablup/mlxcel#347",
    wrappers.with_view(_with_last_seed),
    Suits((Protocol.CHAIN, Protocol.GUMBEL), needs=("several requests",)),
    breaks="replay",
    seen_from="engine evidence",
    situation="neighbour_joins",
)
"""The first token of requests that begin together is drawn with the seed of the last of them.

Each seeds one global generator, and then all draw. A request that begins alone is right.
"""

# requests that finish


def _shifted_after_finish(parts: EngineParts, view: wrappers.BatchView) -> EngineParts:
    def shift(logits: Tensor, placement: Placement) -> Tensor:
        active = [b for b, length in enumerate(placement.lengths) if length]
        if view.finished < 2 or len(active) < 2:
            return logits
        changed = logits.clone()
        changed[torch.tensor(active)] = logits[torch.tensor([*active[1:], active[0]])]
        return changed

    return wrappers.with_logits(shift)(parts)


ROWS_SHIFTED_AFTER_FINISH = Fault(
    "tenstorrent/vllm-tt-plugin#131, vllm-project/vllm#14645",
    wrappers.with_view(_shifted_after_finish),
    SEVERAL,
    Scenario(
        protocol=Protocol.GUMBEL, sampling=SamplingParams(temperature=1.0, stop_token_ids=(2, 9, 17, 28)), rows=16
    ),
    situation="rows_finish_together",
)
"""In the step after one in which two requests finished, every request gets the target's rows of the next one.

The batch is made dense again after each request that leaves, and the indices of the second are those from before the
first left. One request at a time leaves without harm.
"""
