"""Faults of verification: the acceptance test, the residual, the bonus token, and rules that are not the declared one.

Most of them replace one piece of the chain rule (`engine.faults.chain_walk`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from engine.core.trees import children
from engine.core.types import Emitted, Floats, Proposal, Protocol, Role, SamplingParams, StepOutcome
from engine.faults.chain_walk import ChainWalk, Ending, Trial, accepts, bonus, positive_part, replace_token, with_walk
from engine.faults.interface import CHAIN_ONLY, WARPED, Fault, Scenario, Situation, Suits
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TargetRows, inverse_cdf, softmax
from engine.verify.interface import Verifier, VerifierFacts, match

REPEATED_SHARE: Final = 0.05
"""The share of bonus tokens that `BONUS_REPEATS_TOKEN` replaces."""
LEAK_PERIOD: Final = 10
"""`REJECTED_TOKEN_LEAKS` acts at positions that are multiples of this number."""
RESIDUAL_EPSILON: Final = 0.001
"""`RESIDUAL_WITH_EPSILON` adds this to every token's residual."""
SMALL_RESIDUAL: Final = 0.05
"""The mass below which `REJECTED_TOKEN_RECOVERED` acts."""
ALIKE: Final = Scenario(sampling=SamplingParams(temperature=10.0))
"""A temperature at which p and q are almost uniform, so that the residual of a rejection is small."""
Walk = Callable[[VerifierFacts], ChainWalk]


def _walk_fault(upstream: str, walk: Walk, situation: Situation, scenario: Scenario | None = None) -> Fault:
    """A fault of the chain rule that shows in sampled chains."""
    return Fault(upstream, with_walk(walk), CHAIN_ONLY, scenario or Scenario(), situation=situation)


def _bare_softmax(rows: TargetRows, row: int) -> Floats:
    return softmax(rows.logits[row].astype(np.float64))


# the acceptance test

TARGET_NOT_WARPED_IN_TEST = _walk_fault(
    "vllm-project/vllm#9834, #10198", partial(ChainWalk, tested=_bare_softmax), "outside_truncation", WARPED
)
"""Drafts are tested against the bare softmax of the target, without temperature and truncation.

The residual comes from the same softmax; only the bonus token follows the request's parameters.
"""

SQRT_ACCEPTANCE = _walk_fault(
    "none known: stands for every acceptance function that is not min(1, p / q)",
    partial(ChainWalk, accept=lambda trial: trial.u * trial.u * trial.q_token < trial.p_token),
    "rejected_first",
)
"""The test compares with the square root of p / q: a tuned rule that accepts more than p allows."""

ALWAYS_ACCEPT_TOP1 = _walk_fault(
    "none known: a short cut that looks safe, because the target would choose the token at temperature 0",
    partial(ChainWalk, accept=lambda trial: trial.token == int(np.argmax(trial.p)) or accepts(trial)),
    "rejected_first",
)
"""A drafted token that is the most likely one under the target is kept without a test."""


def _lenient(rate: float) -> Fault:
    def accept(trial: Trial) -> bool:
        return accepts(trial) or trial.numbers.uniform(trial.position, Purpose.ACCEPT, 1) < rate

    return _walk_fault(
        "none known: stands for a rare race or rounding that lets a token through",
        partial(ChainWalk, accept=accept),
        "rejected_first",
    )


LENIENT_10_PERCENT = _lenient(0.1)
"""One rejected token in ten is kept: an exact mixture (1 - e) p + e q at drafted positions, with e = 0.1."""
LENIENT_1_PERCENT = _lenient(0.01)
"""The same with e = 0.01."""
LENIENT_0_1_PERCENT = _lenient(0.001)
"""The same with e = 0.001. These faults are the hardest to detect: a replay needs about 1 / e decisions, a test of
tokens about 1 / e^2 tokens.
"""

FIRST_DRAFT_UNVERIFIED = _walk_fault(
    "ohdearquant/lattice#243",
    partial(ChainWalk, accept=lambda trial: trial.node == 0 or accepts(trial)),
    "rejected_first",
)
"""The first drafted token of a step is kept untested: verification begins one position too late."""
LAST_DRAFT_UNVERIFIED = _walk_fault(
    "none known: the mirror image of ohdearquant/lattice#243, whose loop began one too late",
    partial(ChainWalk, accept=lambda trial: trial.node == len(trial.proposal.tree) - 1 or accepts(trial)),
    "rejected_last",
)
"""The last drafted token of a step is kept untested: the loop over the drafts ends one position too early."""

ACCEPTS_EVERYTHING = _walk_fault(
    "ggml-org/llama.cpp#3919, huggingface/transformers#28508",
    partial(ChainWalk, accept=lambda _trial: True),
    "kept_whole",
)
"""Every drafted token is kept: the output is the draft's, and the acceptance rate is 1."""


@dataclass(slots=True)
class _TopTwo:
    facts: VerifierFacts

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:  # noqa: ARG002 - protocol
        """Take the drafted child among the two best tokens, if there is one."""

        def choose(row: int, _position: int) -> int:
            best = [int(token) for token in np.argsort(-rows[row].scores, kind="stable")[:2]]
            offered = [proposal.tree.tokens[child] for child in children(proposal.tree, row - 1)]
            return next((token for token in best if token in offered), best[0])

        return match(proposal, rows, choose)


GREEDY_ACCEPTS_TOP2 = Fault(
    "none known: stands for options that keep a draft among the target's best k",
    lambda parts: replace(parts, verifier=_TopTwo(parts.verifier.facts)),
    Suits((Protocol.GREEDY,), temperature="greedy"),
    Scenario(Protocol.GREEDY, sampling=SamplingParams()),
    breaks="equality",
    situation="near_tie",
)
"""The greedy rule keeps a drafted token if it is the first or the second choice of the target."""

# the residual

RESAMPLE_FROM_P = _walk_fault(
    "none known: the option skip_sample_adjustment of romsto/Speculative-Decoding does it, by reading",
    partial(ChainWalk, left=lambda trial: trial.p),
    "recovered_token",
)
"""A rejected token is replaced by a draw from p, not from max(p - q, 0): tokens that q favours come out too often."""


def _recovered(trial: Trial, token: int, u: float) -> Emitted:
    return Emitted(token, Role.RECOVERED, trial.node, float(trial.p[token]), u)


def _search_or_argmax(trial: Trial, left: Floats) -> Emitted:
    u = trial.numbers.uniform(trial.position, Purpose.RESIDUAL)
    total = np.cumsum(left)
    token = int(np.searchsorted(total, u, side="right")) if u < total[-1] else int(np.argmax(trial.p))
    return _recovered(trial, token, u)


RESIDUAL_NOT_RENORMALISED = _walk_fault(
    "none known: a plain slip, a search that finds no token and falls through",
    partial(ChainWalk, recover=_search_or_argmax),
    "recovered_token",
)
"""The replacement is drawn from a residual that is not normalised.

A number above its mass selects no token, and the code falls through to the most likely token of the target.
"""


def _likeliest(trial: Trial, left: Floats) -> Emitted:
    return _recovered(trial, int(np.argmax(left)), trial.numbers.uniform(trial.position, Purpose.RESIDUAL))


GREEDY_RECOVERED_TOKEN = _walk_fault(
    "none known: a plain slip, a greedy path taken for a sampled request",
    partial(ChainWalk, recover=_likeliest),
    "recovered_token",
)
"""A rejected token is replaced by the most likely token of the residual, not by a draw from the residual."""


def _p_without_token(trial: Trial) -> Floats:
    left = trial.p.copy()
    left[trial.token] = 0.0
    return left


ONE_HOT_RESIDUAL_SOFT_TEST = _walk_fault(
    "none known: the two kinds of draft mixed up; engines with both have a branch for each",
    partial(ChainWalk, left=_p_without_token),
    "recovered_token",
)
"""The test is the one for a sampled draft, the residual the one for a deterministic draft.

The residual is p without the rejected token; the rest of q is not subtracted.
"""


class _Wrapping:
    def __init__(self, inner: Verifier) -> None:
        self._inner = inner
        self.facts = inner.facts


class _Leaking(_Wrapping):
    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        verdict = self._inner.verify(proposal, rows, randomness)
        last = verdict.emitted[-1]
        at = rows.position + len(verdict.emitted) - 1
        if last.role is not Role.RECOVERED or at % LEAK_PERIOD:
            return verdict
        rejected = verdict.examined[-1]
        leaked = Emitted(proposal.tree.tokens[rejected.node], Role.ACCEPTED, last.row, rejected.p)
        return replace(verdict, emitted=(*verdict.emitted[:-1], leaked, last))


REJECTED_TOKEN_LEAKS = Fault(
    "vllm-project/vllm#26231",
    lambda parts: replace(parts, verifier=_Leaking(parts.verifier)),
    Suits(protocols=(Protocol.CHAIN, Protocol.GREEDY, Protocol.GUMBEL), shape="chain", temperature="both"),
    situation="recovered_token",
)
"""At one position in ten, a rejected draft is emitted all the same, before the token that replaces it.

The output contains a token that the target did not choose; every later token is right for the text that it follows.
"""
RESIDUAL_WITH_EPSILON = _walk_fault(
    "vectorch-ai/ScaleLLM#202",
    partial(ChainWalk, left=lambda trial: positive_part(trial) + RESIDUAL_EPSILON),
    "recovered_token",
    ALIKE,
)
"""A constant keeps the residual from a division by zero, and gives every token a share of the replacements.

The smaller the residual, the larger that share: where p and q almost agree, the replacement is almost uniform.
"""


def _rejected_if_small(trial: Trial, left: Floats) -> Emitted:
    if left.sum() >= SMALL_RESIDUAL:
        return replace_token(trial, left)
    return _recovered(trial, trial.token, trial.numbers.uniform(trial.position, Purpose.RESIDUAL))


REJECTED_TOKEN_RECOVERED = _walk_fault(
    "vllm-project/vllm#41834", partial(ChainWalk, recover=_rejected_if_small), "small_residual", ALIKE
)
"""Where the residual is too small to draw from, the token that was just rejected replaces itself.

Upstream a residual that had vanished altogether did it.
"""


def _target_s_own(trial: Trial) -> bool:
    return inverse_cdf(trial.p, trial.numbers.uniform(trial.position, Purpose.BONUS, 1)) == trial.token


SAME_TOKEN_ACCEPTED = _walk_fault(
    "alibaba/rtp-llm#1295",
    partial(ChainWalk, accept=lambda trial: accepts(trial) or _target_s_own(trial)),
    "rejected_first",
)
"""A drafted token is also kept if a draw from the target gives the same token.

Each of the two rules keeps the law; both together accept too often the tokens that the target finds likely.
"""


class _LateReplacement(_Wrapping):
    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        verdict = self._inner.verify(proposal, rows, randomness)
        last = verdict.emitted[-1]
        if last.role is not Role.RECOVERED:
            return verdict
        p = rows[last.row + 1].p
        token = inverse_cdf(p, last.uniform)
        return replace(verdict, emitted=(*verdict.emitted[:-1], replace(last, token=token, p=float(p[token]))))


RECOVERED_FROM_NEXT_ROW = Fault(
    "openvinotoolkit/openvino.genai#4190, #4490",
    lambda parts: replace(parts, verifier=_LateReplacement(parts.verifier)),
    CHAIN_ONLY,
    situation="recovered_token",
)
"""A rejected token is replaced by a draw from the row after it, which was computed behind the rejected token.

The right draw is thrown away, and the next iteration of the loop makes another one. The text lacks a word.
"""

# the bonus token

BONUS_NOT_WARPED = _walk_fault(
    "none known: the copy of EAGLE-1 in hemingkx/Spec-Bench does it, by reading",
    partial(ChainWalk, ends=_bare_softmax),
    "bonus_token",
    WARPED,
)
"""The bonus token is drawn from the bare softmax of the target, without temperature and truncation."""
BONUS_DROPPED = Fault(
    "ohdearquant/lattice#509",
    with_walk(partial(ChainWalk, last=lambda ending: () if len(ending.proposal.tree) else bonus(ending))),
    CHAIN_ONLY,
    breaks="cost",
    seen_from="engine evidence",
    situation="kept_whole",
)
"""A fully accepted draft is not followed by a bonus token.

This fault is a control: the law of the output is intact, and a step merely yields one token less than it paid for.
"""


def _bonus_or_repeat(ending: Ending) -> tuple[Emitted, ...]:
    row, coin = len(ending.proposal.tree), ending.numbers.uniform(ending.position, Purpose.BONUS, 1)
    if not row or coin >= REPEATED_SHARE:
        return bonus(ending)
    token = ending.proposal.tree.tokens[-1]
    u = ending.numbers.uniform(ending.position, Purpose.BONUS)
    return (Emitted(token, Role.BONUS, row, float(ending.p[token]), u),)


BONUS_REPEATS_TOKEN = _walk_fault("kekzl/imp#683", partial(ChainWalk, last=_bonus_or_repeat), "bonus_token")
"""One bonus token in twenty repeats the accepted token before it."""
