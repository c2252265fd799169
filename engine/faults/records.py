"""Faults of records: the tokens are right, and the record of how they came about is wrong."""

from dataclasses import replace
from typing import Final

import numpy as np

from engine.core.types import Proposal, Request, Role, StepOutcome, StepRecord
from engine.decode.seams import EngineParts, Tell
from engine.faults.interface import ANY_ARM, CHAINS, Fault, Situation, Suits
from engine.faults.wrappers import shortened

FAR_BELOW: Final = -1e9
"""A logit whose probability is 0."""


def _record_fault(breaks: str, upstream: str, change: Tell, suits: Suits, situation: Situation) -> Fault:
    def apply(parts: EngineParts) -> EngineParts:
        return replace(parts, record=change)

    return Fault(upstream, apply, suits, breaks=breaks, seen_from="engine evidence", situation=situation)


# log-probabilities


LOGPROB_ROWS_SHIFTED = _record_fault(
    "replay",
    "vllm-project/vllm#33391",
    lambda _request, record: replace(record, logits=np.concatenate([record.logits[:1], record.logits[:-1]])),
    ANY_ARM,
    situation="kept_whole",
)
"""Within a step, the log-probability of each token comes from the row before its own.

The tokens are right. The log-probabilities belong to their neighbours, which only a step of several tokens shows.
"""


def _certain(_request: Request, record: StepRecord) -> StepRecord:
    logits = np.full_like(record.logits, FAR_BELOW)
    logits[np.arange(len(logits)), [emitted.token for emitted in record.verdict.emitted]] = 0.0
    return replace(record, logits=logits)


LOGPROBS_ZERO = _record_fault(
    "replay", "ggml-org/llama.cpp#27972, vllm-project/vllm#17876", _certain, ANY_ARM, situation="first_token"
)
"""Every reported log-probability is 0: certainty, for every token.

The tokens are right, but none of their log-probabilities is.
"""

# acceptance


def _kept_only(_request: Request, record: StepRecord) -> StepRecord:
    kept = tuple(examined for examined in record.verdict.examined if examined.accepted)
    last = Role.BONUS if kept else Role.PLAIN
    emitted = tuple(
        replace(token, role=last) if token.role is Role.RECOVERED else token for token in record.verdict.emitted
    )
    return replace(record, proposal=shortened(record.proposal, len(kept)), verdict=StepOutcome(emitted, kept))


ACCEPTED_COUNTED_AS_DRAFTED = _record_fault(
    "acceptance", "ggml-org/llama.cpp#25682", _kept_only, CHAINS, situation="rejected_first"
)
"""Only accepted drafts are counted as drafted: the acceptance rate is 1.

Rejected tokens vanish from the record, and with them the numbers that rejected them.
"""


def _forget_rejected_draft(_request: Request, record: StepRecord) -> StepRecord:
    if record.verdict.n_accepted or not len(record.proposal.tree):
        return record
    emitted = tuple(replace(token, role=Role.PLAIN) for token in record.verdict.emitted)
    return replace(record, proposal=Proposal(), verdict=StepOutcome(emitted))


DRAFTS_NOT_RECORDED = _record_fault(
    "acceptance",
    "none known: a count of drafts that stands where one was kept",
    _forget_rejected_draft,
    CHAINS,
    situation="rejected_first",
)
"""A step that keeps no token of its draft is recorded as a step without a draft.

Every acceptance figure leaves out exactly the steps that would lower it.
"""


def _count_last(_request: Request, record: StepRecord) -> StepRecord:
    emitted = tuple(
        token if token.role is Role.PLAIN else replace(token, role=Role.ACCEPTED) for token in record.verdict.emitted
    )
    return replace(record, verdict=replace(record.verdict, emitted=emitted))


ACCEPTANCE_INFLATED = _record_fault(
    "acceptance", "sgl-project/sglang#23530, #11572", _count_last, ANY_ARM, situation="recovered_token"
)
"""The token that ends a step is counted as an accepted draft.

Every step counts one token too many: the acceptance rate is never 0 and can exceed 1.
"""
