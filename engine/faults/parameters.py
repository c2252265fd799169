"""Faults of sampling parameters: the target's rows are transformed without some of them, or with wrong counts."""

from dataclasses import replace
from typing import Final

import numpy as np
import torch

from engine.core.types import Protocol, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults import wrappers
from engine.faults.interface import AWAY_FROM_ZERO, Fault, Scenario, Situation, Suits
from engine.sampling.transforms import TransformedRow, softmax

NO_PENALTIES: Final = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
NO_MASKS: Final = {"logit_bias": (), "bad_words": (), "min_tokens": 0}
NO_TRUNCATION: Final = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
NO_TEMPERATURE: Final = {"temperature": 1.0}

PENALISED: Final = Suits(temperature="both", needs=("penalties",))
PENALISING: Final = Scenario(sampling=SamplingParams(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5))


def _penalty_fault(
    upstream: str,
    change: wrappers.ChangeInputs,
    situation: Situation = "penalty_in_draft",
    scenario: Scenario = PENALISING,
) -> Fault:
    """A fault of rows that are transformed with wrong counts for penalties, or without any."""
    return Fault(upstream, wrappers.with_inputs(change), PENALISED, scenario, situation=situation)


# parameters that drafted or bonus rows ignore

TEMPERATURE_IGNORED_ON_DRAFTED_ROWS = Fault(
    "vllm-project/vllm#55005, ohdearquant/lattice#388",
    wrappers.with_inputs(
        lambda inputs: inputs.without(NO_TEMPERATURE) if inputs.drafted and not inputs.params.greedy else inputs
    ),
    Suits(needs=("temperature",)),
    Scenario(sampling=SamplingParams(temperature=0.6)),
    situation="rejected_first",
)
"""Drafted tokens are tested at temperature 1, whatever temperature the request has; bonus tokens are right.

The recorded logits are right as well, so a comparison of log-probabilities shows nothing.
"""

GREEDY_REQUEST_SAMPLED = Fault(
    "vllm-project/vllm#55005",
    wrappers.with_inputs(
        lambda inputs: inputs.without(NO_TEMPERATURE) if inputs.drafted and inputs.params.greedy else inputs
    ),
    Suits(protocols=(Protocol.CHAIN, Protocol.TREE, Protocol.BLOCK), temperature="greedy"),
    Scenario(sampling=SamplingParams(temperature=0.0)),
    breaks="equality",
    situation="rejected_first",
)
"""The drafts of a request at temperature 0 are tested as if the request sampled.

This happens to a greedy request in a batch whose other requests sample. Its bonus tokens are right.
"""

TRUNCATION_MISSING_ON_DRAFTED_ROWS = Fault(
    "vllm-project/vllm#42744",
    wrappers.with_inputs(lambda inputs: inputs.without(NO_TRUNCATION) if inputs.drafted else inputs),
    Suits(needs=("truncation",)),
    Scenario(sampling=SamplingParams(temperature=1.0, top_k=5)),
    situation="outside_truncation",
)
"""Drafted tokens are tested without top-k, top-p and min-p; bonus tokens are truncated as requested.

The draft is truncated, so it seldom offers a forbidden token; the residual gives such tokens a share that they should
not have.
"""

TRUNCATION_MISSING_WITHOUT_DRAFT = Fault(
    "none known: engines that take another path for requests without a draft",
    wrappers.with_inputs(lambda inputs: inputs if inputs.drafted or inputs.path else inputs.without(NO_TRUNCATION)),
    Suits(needs=("truncation",)),
    Scenario(proposer="ngram", drafts=0, sampling=SamplingParams(temperature=1.0, top_k=5)),
    situation="nothing_drafted",
)
"""A step in which nothing was drafted draws its token without top-k, top-p and min-p.

The better the proposer finds something to copy, the rarer the fault.
"""

PENALTIES_MISSING_ON_DRAFTED_ROWS = _penalty_fault(
    "vllm-project/vllm#18902, #19482, NVIDIA/TensorRT-LLM#17701",
    lambda inputs: inputs.without(NO_PENALTIES) if inputs.drafted else inputs,
)
"""Drafted tokens are tested without repetition, presence and frequency penalties; bonus tokens have them.

The better the drafts, the less effect the penalties of a request have, and no message says so.
"""

MASKS_MISSING_ON_DRAFTED_ROWS = Fault(
    "vllm-project/vllm#42744, #19482",
    wrappers.with_inputs(lambda inputs: inputs.without(NO_MASKS) if inputs.drafted else inputs),
    Suits(temperature="both", needs=("masks",)),
    Scenario(
        sampling=SamplingParams(temperature=1.0, bad_words=((1,), (8,), (19,)), logit_bias=((4, 2.0), (23, -2.0)))
    ),
    situation="ban_in_draft",
)
"""Drafted tokens are tested without logit bias, bad words and minimum length; bonus tokens have them.

A forbidden token can come out of a residual, and a favoured one is rejected.
"""

PENALTIES_MISSING_ON_BONUS_ROW = _penalty_fault(
    "none known: the other half of engines that transform drafted and bonus rows in two places",
    lambda inputs: inputs if inputs.drafted or not inputs.path else inputs.without(NO_PENALTIES | NO_MASKS),
    situation="bonus_token",
)
"""Bonus tokens are drawn without penalties, bias and masks; drafted tokens are tested with them.

Every drafted token dilutes the fault: only a step that keeps its whole draft shows it.
"""

# wrong counts

PENALTIES_DOUBLE_COUNTED = _penalty_fault(
    "vllm-project/vllm#33251",
    lambda inputs: replace(inputs, path=inputs.path * 2),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, frequency_penalty=0.8)),
)
"""The frequency penalty counts the drafted tokens on a row's path twice.

It counts each of them once as a draft and once as output: the deeper the row in the draft, the larger the excess.
"""


def _last_tokens_only(parts: EngineParts) -> EngineParts:
    ends = wrappers.StepEnds()

    def of_step(step: wrappers.Step) -> wrappers.ChangeInputs:
        counted = (*step.history[: step.n_prompt], *ends.before(step))
        return lambda inputs: replace(inputs, committed=counted, path=())

    return wrappers.with_inputs_by_step(of_step)(parts)


PENALTIES_PER_STEP = Fault(
    "sgl-project/sglang#33643", _last_tokens_only, PENALISED, PENALISING, situation="penalty_in_draft"
)
"""Penalties count one token of each step, its last, whatever number of tokens the step emitted.

The better the drafts, the weaker the penalties: at an acceptance length of 4, three tokens of four are never counted.
"""


def _counted_as(inputs: wrappers.RowInputs, counted: int) -> wrappers.RowInputs:
    """The minimum raised by the tokens that are not counted, because the transform compares it with all tokens."""
    minimum, generated = inputs.params.min_tokens, len(inputs.committed) + len(inputs.path) - inputs.n_prompt
    if not minimum:
        return inputs
    return replace(inputs, params=replace(inputs.params, min_tokens=minimum + generated - counted))


def _count_steps(parts: EngineParts) -> EngineParts:
    ends = wrappers.StepEnds()

    def of_step(step: wrappers.Step) -> wrappers.ChangeInputs:
        counted = len(ends.before(step))
        return lambda inputs: _counted_as(inputs, counted)

    return wrappers.with_inputs_by_step(of_step)(parts)


MIN_TOKENS_IN_STEPS = Fault(
    "sgl-project/sglang#33643",
    _count_steps,
    Suits(temperature="both", needs=("masks", "end tokens")),
    Scenario(sampling=SamplingParams(temperature=1.0, min_tokens=8, stop_token_ids=(2, 9, 17, 28))),
    situation="min_tokens_in_draft",
)
"""The minimum length is counted in steps, so end tokens stay forbidden for too long.

A step of several tokens counts as one. Responses are longer than they should be, and the better the drafts, the larger
the excess.
"""


MIN_TOKENS_AT_STEP_START = Fault(
    "vllm-project/vllm#32642",
    wrappers.with_inputs(lambda inputs: _counted_as(inputs, len(inputs.committed) - inputs.n_prompt)),
    Suits(temperature="both", needs=("masks", "end tokens")),
    Scenario(sampling=SamplingParams(temperature=1.0, min_tokens=8, stop_token_ids=(2, 9, 17, 28))),
    situation="min_tokens_in_draft",
)
"""The minimum length is compared with the length at the beginning of the step, for all rows of a draft.

In the step that reaches the minimum, end tokens stay forbidden up to its last row.
"""

PENALTIES_WITHOUT_DRAFT = _penalty_fault("sgl-project/sglang#28242", lambda inputs: replace(inputs, path=()))
"""All rows of a draft are penalised for the committed tokens only, not for the drafted tokens before them.

A token that a draft repeats is penalised from the next step on.
"""

PENALTIES_OF_LAST_TOKEN = _penalty_fault(
    "ikawrakow/ik_llama.cpp#2410",
    lambda inputs: replace(inputs, committed=[*inputs.committed[: inputs.n_prompt], *_generated(inputs)[-1:]], path=()),
)
"""Penalties know one token of the response, the one before the row.

Each accepted token takes the place of the one before it in the history that penalties read.
"""


def _generated(inputs: wrappers.RowInputs) -> list[int]:
    return [*inputs.committed[inputs.n_prompt :], *inputs.path]


def _count_rejected(parts: EngineParts) -> EngineParts:
    steps: dict[int, wrappers.Step] = {}
    lengths: dict[int, int] = {}
    rejected: dict[int, list[int]] = {}

    def of_step(step: wrappers.Step) -> wrappers.ChangeInputs:
        key = id(step.history)
        if len(step.history) == step.n_prompt:
            rejected[key] = []
        elif key in steps:
            kept = len(step.history) - lengths[key] - 1
            rejected[key] = [*rejected[key], *steps[key].tree.tokens[kept:]]
        steps[key], lengths[key] = step, len(step.history)
        extra = tuple(rejected[key])
        return lambda inputs: replace(inputs, committed=[*inputs.committed, *extra])

    return wrappers.with_inputs_by_step(of_step)(parts)


REJECTED_DRAFTS_PENALISED = Fault(
    "osaurus-ai/vmlx-swift#357",
    _count_rejected,
    Suits(shape="chain", temperature="both", needs=("penalties",)),
    Scenario(sampling=SamplingParams(temperature=1.0, frequency_penalty=0.5)),
    situation="penalty_in_draft",
)
"""Rejected drafts stay in the counts from which penalties are computed.

Drafting and verification count in the same table, and nothing takes the rejected tokens out of it.
"""

# bans


BAD_WORDS_ONE_EARLY_IN_DRAFT = Fault(
    "vllm-project/vllm#52311",
    wrappers.with_inputs(
        lambda inputs: replace(inputs, path=(inputs.committed[-1], *inputs.path[:-1])) if inputs.path else inputs
    ),
    Suits(temperature="both", needs=("masks",)),
    Scenario(
        sampling=SamplingParams(
            temperature=1.0, bad_words=tuple((a, b) for a in range(32) for b in range((5 * a) % 8, 32, 8))
        )
    ),
    situation="ban_in_draft",
)
"""Within a draft, the beginning of a bad word is looked for one token too early: the root is read twice.

A word whose beginning was drafted is not forbidden, and another one may be. Words of one token are right.
"""

# truncation


class _ExactlyK(wrappers.WrappedRows):
    def __getitem__(self, row: int) -> TransformedRow:
        transformed = super().__getitem__(row)
        if self._params.top_k == 0 or self._params.greedy:
            return transformed
        rounded = torch.from_numpy(transformed.scores).to(torch.bfloat16).double().numpy()
        kept = np.argsort(-rounded, kind="stable")[: self._params.top_k]
        if not np.setdiff1d(np.flatnonzero(transformed.p), kept).size:
            return transformed
        p = np.zeros_like(transformed.p)
        p[kept] = softmax(transformed.scores[kept] / self._params.temperature)
        return replace(transformed, p=p)


TOP_K_TIES_CUT = Fault(
    "vllm-project/vllm#50979, sgl-project/sglang#33539",
    wrappers.with_rows(_ExactlyK),
    Suits(needs=("truncation",)),
    Scenario(sampling=SamplingParams(temperature=1.0, top_k=5, logit_bias=AWAY_FROM_ZERO)),
    situation="near_tie",
)
"""Of the tokens that tie in bfloat16 at the k-th place, those with the lowest ids are kept.

The draft is truncated by the exact logits. Only rows with a tie at that place differ.
"""
