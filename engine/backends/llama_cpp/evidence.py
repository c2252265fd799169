"""The evidence of llama.cpp.

Its server reports the tokens, their log-probabilities, and the numbers of drafted and accepted tokens of each answer.
It names no draft and shows no row, q or random number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.llama_cpp.settings import draws, settings_of, shares
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner

SHOWN: Final = (Part.TEXT, Part.DECODED, Part.TOKENS, Part.REFERENCE, Part.ACCOUNTS, Part.LOGPROBS)
LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (1, frozenset(SHOWN)),
        **dict.fromkeys((RecordLevel.SCALARS, RecordLevel.TOPK, RecordLevel.FULL), (1, frozenset[Part]())),
    }
)


def rule_of(asked: Protocol) -> Protocol:
    """The rule that verifies: a copied or greedy draft is matched with a draw from p."""
    return asked if asked in (Protocol.GREEDY, Protocol.GUMBEL) else Protocol.CHAIN


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence.

    Raises:
        InvalidRequest: settings that llama.cpp lacks.
    """
    plan = settings.plan
    taken = settings_of(plan)
    counts = frozenset((Part.COUNTS,)) if plan.proposer is not None else frozenset[Part]()
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=LEVELS[plan.level].level,
        parts=LEVELS[plan.level].parts | counts,
        protocol=rule_of(plan.protocol),
        drawn=draws(taken) and not settings.greedy,
        shares=shares(taken),
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
