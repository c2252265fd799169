"""The evidence of onnxruntime-genai.

The engine reports every token, how many drafted tokens each round proposed, evaluated and accepted, and, without
speculation or with a draft model, the target's row before every token. It reports neither the refused drafts nor q,
random numbers, or its own probabilities. With n-gram drafts it refuses to show rows after a step without a draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.onnxruntime_genai.settings import settings_of
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner

LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (0, frozenset((Part.TEXT, Part.DECODED, Part.TOKENS, Part.REFERENCE, Part.ACCOUNTS))),
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS,))),
        RecordLevel.TOPK: (2, frozenset((Part.P,))),
        RecordLevel.FULL: (2, frozenset((Part.ROWS,))),
    }
)
ROWLESS: Final = ("ngram",)
"""Proposers beside which the engine shows no rows."""


def record_level(proposer: str | None, asked: RecordLevel) -> RecordLevel:
    """The level of an arm's records."""
    return RecordLevel.TOKENS if proposer in ROWLESS else asked


def rule_of(asked: Protocol) -> Protocol:
    """The rule that verifies: n-gram drafts are matched with draws from p, which is the chain rule for one-hot q."""
    return Protocol.GREEDY if asked is Protocol.GREEDY else Protocol.CHAIN


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence.

    Raises:
        InvalidRequest: settings that onnxruntime-genai lacks.
    """
    plan = settings.plan
    settings_of(plan)
    shown = LEVELS[record_level(plan.proposer, plan.level)]
    counts = frozenset((Part.COUNTS,)) if plan.proposer is not None else frozenset()
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=shown.level,
        parts=shown.parts | counts,
        protocol=rule_of(plan.protocol),
        drawn=plan.proposer == "draft_model" and not settings.greedy,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
