"""The evidence of mlx_lm.

The engine reports every token with the target's row and states whether it was drafted. Its sampler, which the driver
wraps, sees every drafted token. Drafts are accepted where the target's own draw is the drafted token, so q is one-hot.
No record holds random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.mlx_lm.settings import settings_of
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner

LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (
            0,
            frozenset((Part.TEXT, Part.DECODED, Part.TOKENS, Part.DRAFTS, Part.COUNTS, Part.REFERENCE, Part.ACCOUNTS)),
        ),
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS,))),
        RecordLevel.TOPK: (3, frozenset((Part.P, Part.Q))),
        RecordLevel.FULL: (3, frozenset((Part.ROWS,))),
    }
)


def rule_of(asked: Protocol) -> Protocol:
    """The rule that verifies: drafts are matched with draws from p, which is the chain rule for one-hot q."""
    return Protocol.GREEDY if asked is Protocol.GREEDY else Protocol.CHAIN


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence.

    Raises:
        InvalidRequest: settings that mlx_lm lacks.
    """
    plan = settings.plan
    settings_of(plan)
    shown = LEVELS[plan.level]
    return ArmEvidence(LoopOwner.FOREIGN, shown.level, shown.parts, rule_of(plan.protocol))


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
