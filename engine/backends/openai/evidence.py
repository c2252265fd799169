"""The evidence of an endpoint: its answers, at every record level.

A server may omit requested token ids or log-probabilities; the request then reports a lower level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.openai.settings import OpenAISettings, settings_of
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner

LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (1, frozenset((Part.TEXT, Part.DECODED, Part.CALLS, Part.ACCOUNTS, Part.LOGPROBS))),
        **dict.fromkeys((RecordLevel.SCALARS, RecordLevel.TOPK, RecordLevel.FULL), (1, frozenset[Part]())),
    }
)
"""With log-probabilities, which the setting `logprobs: 0` turns off; they name the tokens that make the text."""
SERVED: Final = "served:"
COUNTING: Final = ("vllm", "llama.cpp")
"""Servers that may report counts of drafts with an answer."""


def level_of(settings: OpenAISettings) -> int:
    """The arm's evidence level."""
    return LEVELS[RecordLevel.TOKENS].level if settings.logprobs else 0


def rule_of(plan_rule: Protocol, *, plain: bool) -> Protocol:
    """The rule in the records. A server does not report how it draws, so its plain arms are not coupled."""
    return Protocol.CHAIN if plain and plan_rule is Protocol.GUMBEL else plan_rule


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence, by the endpoint's settings.

    Raises:
        InvalidRequest: an invalid setting.
    """
    plan, own = settings.plan, settings_of(settings.plan.engine)
    local = not settings.target.source.startswith(SERVED)
    parts = set(LEVELS[plan.level].parts)
    if not own.logprobs:
        parts.discard(Part.LOGPROBS)
    if local:
        parts.add(Part.REFERENCE)
    # the end tokens of a served model without local files are unknown
    if local and own.dialect.token_ids:
        parts.add(Part.TOKENS)
    elif not own.logprobs:
        parts.discard(Part.DECODED)
    if plan.proposer is not None and own.server in COUNTING:
        parts.add(Part.COUNTS)
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=level_of(own),
        parts=frozenset(parts),
        protocol=rule_of(plan.protocol, plain=plan.proposer is None),
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
