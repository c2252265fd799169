"""Faults of drafting: drafted tokens that were not drawn from the reported q, or not with the recorded number."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.types import DraftRule, Emitted, Floats, Protocol, Role, SamplingParams
from engine.decode.seams import EngineParts, as_it_is
from engine.faults.chain_walk import ChainWalk, Trial
from engine.faults.interface import CHAIN_ONLY, CHAIN_SHAPED, WARPED, ChangeParts, Fault, Scenario, Suits
from engine.sampling.draw import DraftContext, Draw, DrawRule, SiblingSpec
from engine.sampling.transforms import gumbel_argmax, inverse_cdf

Row = NDArray[np.floating[Any]]
ChangeDraw = Callable[[Draw, Floats, DraftContext], Draw]
"""(the draw, its q, the context) -> the changed draw."""

UNDECLARED_TEMPERATURE: Final = 0.7
"""`DRAFT_TEMPERATURE_UNDECLARED` multiplies the request's temperature by this."""
UNDECLARED_TOP_K: Final = 10
"""`DRAFT_TOP_10_RAW_Q` keeps this number of tokens."""
BUSHY: Final = Scenario(Protocol.TREE, "sequoia", 12, options={"rates": "0.5,0.3,0.15", "depth": 3})
"""Trees whose nodes have several children."""


# tokens and q from different views of one row


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """One row of draft logits, and the context of the draw."""

    logits: Row
    context: DraftContext


ChangeInputs = Callable[[DrawInputs], DrawInputs]


def split_draw(draw: DrawRule, token_from: ChangeInputs, q_from: ChangeInputs) -> DrawRule:
    """A draw that takes its token from one view of the draft's row and its q from another.

    Deterministic draws stay as they are.
    """

    def split(rule: DraftRule, logits: Row, context: DraftContext) -> Draw:
        inputs = DrawInputs(logits, context)
        reported = q_from(inputs)
        drawn = draw(rule, reported.logits, reported.context)
        if drawn.q is None:
            return drawn
        actual = token_from(inputs)
        return replace(drawn, token=draw(rule, actual.logits, actual.context).token)

    return split


def with_views(token_from: ChangeInputs = as_it_is, q_from: ChangeInputs = as_it_is) -> ChangeParts:
    """Take the token and the q of every draw of a draft from different views of the row."""
    return lambda parts: replace(parts, draw=split_draw(parts.draw, token_from, q_from))


def _with_params(inputs: DrawInputs, params: SamplingParams) -> DrawInputs:
    return replace(inputs, context=replace(inputs.context, params=params))


def _unwarped(inputs: DrawInputs) -> DrawInputs:
    return _with_params(inputs, replace(inputs.context.params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))


RAW_Q_WARPED_DRAFT = Fault(
    "huggingface/transformers#47932", with_views(q_from=_unwarped), CHAIN_SHAPED, WARPED, situation="rejected_first"
)
"""The draft is drawn with temperature and truncation, and q is reported without them: it is too flat."""


DRAFT_TOP_10_RAW_Q = Fault(
    "huggingface/transformers#47932",
    with_views(token_from=lambda inputs: _with_params(inputs, replace(inputs.context.params, top_k=UNDECLARED_TOP_K))),
    CHAIN_SHAPED,
    situation="unlikely_token",
)
"""The draft is drawn from its ten most likely tokens, and q is reported without truncation."""

DRAFT_TEMPERATURE_UNDECLARED = Fault(
    "none known: z-lab/dflash#74 drafts at a temperature of its own, under a rule that does not ask for q",
    with_views(token_from=lambda inputs: replace(inputs, logits=inputs.logits / UNDECLARED_TEMPERATURE)),
    CHAIN_SHAPED,
    situation="rejected_first",
)
"""The draft is drawn at 0.7 of the request's temperature, and q is reported at the request's temperature."""


def _at_temperature_one(inputs: DrawInputs) -> DrawInputs:
    params = inputs.context.params
    return inputs if params.greedy else _with_params(inputs, replace(params, temperature=1.0))


DRAFT_TEMPERATURE_IGNORED = Fault(
    "none known: a draft's sampler that is called with its default",
    with_views(token_from=_at_temperature_one),
    Suits(shape="chain", needs=("temperature",)),
    Scenario(sampling=SamplingParams(temperature=0.6)),
    situation="rejected_first",
)
"""The draft is drawn at temperature 1, and verified with q at the request's temperature.

The sampler of the draft does not receive the temperature. A request at temperature 1 is not affected.
"""


def _in_bfloat16(inputs: DrawInputs) -> DrawInputs:
    return replace(inputs, logits=torch.tensor(inputs.logits).bfloat16().float().numpy())


DRAFT_FROM_BF16_LOGITS = Fault(
    "deepseek-ai/DeepSpec#31",
    with_views(token_from=_in_bfloat16),
    CHAIN_SHAPED,
    seen_from="engine evidence",
    situation="near_tie",
)
"""The draft is drawn from logits rounded to bfloat16, and q is computed from the unrounded logits."""

Q_ROUNDED = Fault(
    "none known: drafts kept in half precision between the draft and the test",
    with_views(q_from=_in_bfloat16),
    CHAIN_SHAPED,
    seen_from="engine evidence",
    situation="rejected_first",
)
"""The draft is drawn from q in full precision, and verified with the q of logits in bfloat16.

The law moves by less than a test of tokens can detect. To draw the token again from the recorded row shows that it
came from another q.
"""

# draws changed afterwards


def changed_draw(draw: DrawRule, change: ChangeDraw) -> DrawRule:
    """A draw whose result is changed if it reports q; deterministic draws stay as they are."""

    def changed(rule: DraftRule, logits: Row, context: DraftContext) -> Draw:
        drawn = draw(rule, logits, context)
        return drawn if drawn.q is None else change(drawn, drawn.q, context)

    return changed


ARGMAX_DRAFT_SOFT_Q = Fault(
    "huggingface/transformers#32867, #47932",
    lambda parts: replace(
        parts, draw=changed_draw(parts.draw, lambda drawn, q, _context: replace(drawn, token=int(np.argmax(q))))
    ),
    situation="rejected_first",
)
"""The draft takes its argmax but reports the softmax as q.

Verification then tests against a distribution that the token was not drawn from: likely tokens are emitted too often,
and the acceptance rate rises. At temperature 0 nothing changes, so greedy comparisons cannot detect it.
"""


def _unseeded(parts: EngineParts) -> EngineParts:
    entropy = random.SystemRandom()

    def redraw(drawn: Draw, q: Floats, _context: DraftContext) -> Draw:
        u = entropy.random()
        return replace(drawn, token=inverse_cdf(q, u), uniform=u)

    return replace(parts, draw=changed_draw(parts.draw, redraw))


UNSEEDED_DRAFT = Fault(
    "none known: the first runner of vllm-project/vllm drafts so, with a note in its source, by reading",
    _unseeded,
    CHAIN_SHAPED,
    breaks="replay",
    seen_from="engine evidence",
    situation="rejected_first",
)
"""The draft draws its tokens with numbers from the operating system: the law holds, but no run can be repeated."""


def _redrawn_by_noise(drawn: Draw, q: Floats, context: DraftContext) -> Draw:
    noise = context.randomness.gumbel(len(context.history), len(q))
    return replace(drawn, token=gumbel_argmax(q, noise), uniform=float(np.nan))


def _recovered_by_noise(trial: Trial, left: Floats) -> Emitted:
    token = gumbel_argmax(left, trial.numbers.gumbel(trial.position, len(left)))
    return Emitted(token, Role.RECOVERED, trial.node, float(trial.p[token]))


SHARED_GUMBEL_NOISE = Fault(
    "vllm-project/vllm#47386, #54282",
    lambda parts: replace(
        parts,
        draw=changed_draw(parts.draw, _redrawn_by_noise),
        verifier=ChainWalk(parts.verifier.facts, recover=_recovered_by_noise),
    ),
    CHAIN_ONLY,
    situation="recovered_token",
)
"""The Gumbel noise that drew a rejected token draws its replacement too.

The rejected token won, so the noise was small at every other token, and the replacement leans towards the tokens that
the draft passed over. The acceptance rate is right.
"""

# the children of a node


def sibling_fault(upstream: str, change: Callable[[list[Draw]], list[Draw]]) -> Fault:
    """A fault that changes the draws of all children of a node."""

    def apply(parts: EngineParts) -> EngineParts:
        def draw_siblings(rule: DraftRule, siblings: SiblingSpec, logits: Row, context: DraftContext) -> list[Draw]:
            return change(parts.draw_siblings(rule, siblings, logits, context))

        return replace(parts, draw_siblings=draw_siblings)

    return Fault(upstream, apply, Suits((Protocol.TREE,), "tree"), BUSHY, situation="tree_branch")


SIBLINGS_SHARE_FULL_Q = sibling_fault(
    "none known: the slip that drawing without replacement invites",
    lambda draws: [replace(drawn, q=draws[0].q) for drawn in draws],
)
"""Siblings are drawn without replacement and verified with the whole q, as if they had been drawn with replacement."""


def _beam(draws: list[Draw]) -> list[Draw]:
    if not draws or draws[0].q is None:
        return draws
    likeliest = np.argsort(-draws[0].q, kind="stable")
    return [replace(drawn, token=int(token)) for drawn, token in zip(draws, likeliest, strict=False)]


BEAM_DRAFTS_AS_SAMPLES = sibling_fault("apple/ml-recurrent-drafter#6", _beam)
"""The most likely children are drafted, as a beam search finds them, and reported as draws from q."""
