"""The evidence of OpenVINO GenAI.

The engine reports the tokens that every step committed and their log-probabilities. It names no draft and shows no row,
q or random number. With setting `counters` it counts drafted and accepted tokens and reports no log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.openvino_genai.settings import counted, settings_of
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner

SHOWN: Final = (Part.TEXT, Part.DECODED, Part.TOKENS, Part.REFERENCE, Part.ACCOUNTS, Part.LOGPROBS)
LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (1, frozenset(SHOWN)),
        **dict.fromkeys((RecordLevel.SCALARS, RecordLevel.TOPK, RecordLevel.FULL), (1, frozenset[Part]())),
    }
)


def level_of(*, counters: bool) -> int:
    """The level of an arm's evidence: counters come without log-probabilities."""
    return 0 if counters else LEVELS[RecordLevel.TOKENS].level


def rule_of(asked: Protocol) -> Protocol:
    """The rule that verifies: looked-up drafts are matched with draws from p, which is the chain rule for one-hot q."""
    return Protocol.GREEDY if asked is Protocol.GREEDY else Protocol.CHAIN


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence.

    Raises:
        InvalidRequest: settings that OpenVINO GenAI lacks.
    """
    plan = settings.plan
    counters = counted(settings_of(plan))
    parts = LEVELS[plan.level].parts
    if counters:
        parts -= {Part.LOGPROBS}
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=level_of(counters=counters),
        parts=parts | (frozenset((Part.COUNTS,)) if counters and plan.proposer is not None else frozenset()),
        protocol=rule_of(plan.protocol),
        drawn=plan.proposer == "draft_model" and not settings.greedy,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
