"""The evidence of assisted generation.

Random numbers come from torch's generator and cannot be regenerated from a key: no record level holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.transformers.settings import settings_of
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner

LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (
            0,
            frozenset((Part.TEXT, Part.DECODED, Part.TOKENS, Part.DRAFTS, Part.COUNTS, Part.REFERENCE)),
        ),
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS,))),
        RecordLevel.TOPK: (3, frozenset((Part.P, Part.Q))),
        RecordLevel.FULL: (3, frozenset((Part.ROWS,))),
    }
)
TEXT_LEVEL: Final = 1
"""The evidence level of text and log-probabilities: used if the drafts cannot be observed."""


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence; drafts are observed and compared with the output in every arm that drafts.

    Raises:
        InvalidRequest: settings that assisted generation lacks.
    """
    plan = settings.plan
    shown, own = LEVELS[plan.level], settings_of(plan)
    accounts = frozenset((Part.ACCOUNTS,)) if own.kind is not None else frozenset()
    protocol = own.protocol(plan.protocol)
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=shown.level,
        parts=shown.parts | accounts,
        protocol=protocol,
        lossless=protocol is not Protocol.ENSEMBLE,
        drawn=own.soft and not settings.greedy,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
