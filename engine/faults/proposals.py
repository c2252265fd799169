"""Faults of proposals: drafts that are cut, given to another request or reported with the wrong rows of q."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.types import DraftRule, Floats, Proposal, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import ANY_ARM, CHAIN_SHAPED, Fault, Scenario, Suits
from engine.faults.wrappers import ChangeProposals, shortened, with_proposals, with_proposer
from engine.proposers.interface import Context
from engine.sampling.draw import DraftContext, Draw
from engine.verify.interface import q_of

LEAST_OWN_Q: Final = 0.2
LEAST_NEXT_Q: Final = 0.25
EARLY_STOPPING: Final = Scenario(options={"stop_below": 0.05})
"""A draft that declares early stops, so that a short draft does not contradict its declaration."""

# the length of a draft


def sure_ones(proposal: Proposal, least: float = LEAST_OWN_Q) -> Proposal:
    """The tokens before the first one whose q is below `least`."""
    unlikely = (node for node in range(len(proposal.tree)) if q_of(proposal, node) < least)
    return shortened(proposal, next(unlikely, len(proposal.tree)))


TRIMMED_BY_OWN_PROBABILITY = Fault(
    "none known: ggml-org/llama.cpp#22506 drops such tokens, where drafts are not drawn",
    with_proposer(offer=sure_ones),
    CHAIN_SHAPED,
    EARLY_STOPPING,
    situation="unlikely_token",
)
"""A draft is cut before the first token that the draft model itself considered unlikely.

The tokens that are cut never reach the record. `engine.proposers.confidence` explains why the law breaks.
"""


def followed_surely(proposal: Proposal, least: float = LEAST_NEXT_Q) -> Proposal:
    """The tokens before the first one after which the largest q is below `least`; the last token is never examined."""
    if proposal.q is None:
        return proposal
    after = proposal.q[1:].max(axis=1)
    unsure = (node for node, largest in enumerate(after) if largest < least)
    return shortened(proposal, next(unsure, len(proposal.tree)))


TRIMMED_BY_NEXT_CONFIDENCE = Fault(
    "none known: vllm-project/vllm warns of it in the source of its acceptance estimator, by reading",
    with_proposer(offer=followed_surely),
    CHAIN_SHAPED,
    EARLY_STOPPING,
    situation="unlikely_token",
)
"""A draft is cut before a token after which the draft model is unsure: the confidence depends on the token cut."""

GAMMA_NOT_RESPECTED = Fault(
    "none known: options that do not reach the drafter; drafts above gamma are refused by the loop",
    with_proposer(ask=lambda context: replace(context, budget=(context.budget + 1) // 2)),
    ANY_ARM,
    breaks="cost",
    seen_from="engine evidence",
    situation="kept_whole",
)
"""Half of the requested tokens are drafted: one place in the code reads gamma, another does not."""


def _without_forbidden(context: Context, proposal: Proposal) -> Proposal:
    forbidden = {word[0] for word in context.request.sampling.bad_words if len(word) == 1}
    tokens = proposal.tree.tokens
    count = next((i for i, token in enumerate(tokens) if token in forbidden), len(tokens))
    return shortened(proposal, count)


def _drop_forbidden(contexts: Sequence[Context], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
    return [_without_forbidden(context, proposal) for context, proposal in zip(contexts, proposals, strict=True)]


def _draft_unmasked(parts: EngineParts) -> EngineParts:
    def draw(rule: DraftRule, logits: NDArray[np.floating[Any]], context: DraftContext) -> Draw:
        return parts.draw(rule, logits, replace(context, params=replace(context.params, bad_words=())))

    return replace(parts, draw=draw)


FORBIDDEN_DRAFTS_DROPPED = Fault(
    "none known: engines drop what a grammar forbids before verification, nobody has reported the bias",
    lambda parts: with_proposals(lambda: _drop_forbidden)(_draft_unmasked(parts)),
    Suits(shape="chain", needs=("masks",)),
    Scenario(sampling=SamplingParams(temperature=1.0, bad_words=((1,), (8,), (14,), (19,), (22,), (27,)))),
    situation="ban_in_draft",
)
"""Drafted tokens that a mask forbids are dropped before verification and leave no trace.

A grammar does this to a draft that does not know it. The token was drawn, so the residual must decide its position; if
the position is decided as if nothing had been drafted, the allowed tokens follow the wrong law. The record cannot show
it: the recorded proposal is not the one that was drawn.
"""

# rows and requests


def shifted(proposal: Proposal) -> Proposal:
    """Row 0 stays; row i becomes row i - 1."""
    if proposal.q is None or len(proposal.q) == 0:
        return proposal
    return replace(proposal, q=np.concatenate([proposal.q[:1], proposal.q[:-1]]))


DRAFT_ROWS_SHIFTED = Fault(
    "none known: the draft's half of a shifted row",
    with_proposer(offer=shifted),
    CHAIN_SHAPED,
    situation="rejected_middle",
)
"""Every drafted token after the first is reported with the q row of the token before it.

That q belongs to another position: the ratio of the test and the residual are both wrong.
"""


def _one_step_late() -> ChangeProposals:
    kept: dict[str, Floats] = {}

    def change(contexts: Sequence[Context], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
        changed = []
        for context, proposal in zip(contexts, proposals, strict=True):
            late = kept.get(context.request.id)
            usable = late is not None and proposal.q is not None and len(late) >= len(proposal.q)
            changed.append(replace(proposal, q=late[: len(proposal.tree)]) if usable and late is not None else proposal)
            if proposal.q is not None:
                kept[context.request.id] = proposal.q
        return changed

    return change


STALE_Q = Fault(
    "none known: engines that hand q from one step to the next can hand it one step late",
    with_proposals(_one_step_late),
    situation="rejected_first",
)
"""The drafts of a step are verified with the q rows of the step before.

The rows are kept for the next step and read one step late. Every test of a draft is right for the recorded q, because
the verifier used that q; the drafted tokens were not drawn from it.
"""


def _rotate_drafts(contexts: Sequence[Context], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
    given = [proposals[-1], *proposals[:-1]] if proposals else []
    # the loop refuses a draft that is longer than the request has room for
    return [
        other if len(other.tree) == len(own.tree) <= context.budget else own
        for context, own, other in zip(contexts, proposals, given, strict=True)
    ]


DRAFTS_OF_ANOTHER_REQUEST = Fault(
    "none known: the draft's half of rows that are permuted in a batch",
    with_proposals(lambda: _rotate_drafts),
    Suits(shape="chain", temperature="both", needs=("several requests",)),
    breaks="acceptance",
    seen_from="engine evidence",
    situation="neighbour_joins",
)
"""The requests of a batch get each other's drafts, with their q.

The law holds, as it does for any draft. Tokens that continue another text are seldom kept, and each was drawn with a
number of another request.
"""
