"""The evidence of a running vLLM with working hooks.

No record holds the engine's random numbers. Settings that vLLM ignores, such as a rule that its model runner lacks,
appear only in the effective configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.vllm.options import DRAWING
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner

LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (
            0,
            frozenset(
                (
                    Part.TEXT,
                    Part.DECODED,
                    Part.CALLS,
                    Part.CALLED_TEXT,
                    Part.MASKS,
                    Part.TOKENS,
                    Part.DRAFTS,
                    Part.COUNTS,
                    Part.REFERENCE,
                    Part.ACCOUNTS,
                )
            ),
        ),
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS,))),
        RecordLevel.TOPK: (3, frozenset((Part.P, Part.Q))),
        RecordLevel.FULL: (3, frozenset((Part.ROWS,))),
    }
)
RULES: Final[Mapping[str, Protocol]] = {"block": Protocol.BLOCK, "synthetic": Protocol.SYNTHETIC}
"""Rules by vLLM's `rejection_sample_method`; every other one is the chain rule."""


def answer_level(logprobs: int | None) -> int:
    """The evidence level of the answers alone."""
    return 0 if logprobs is None else 1


def level_of(record: RecordLevel, logprobs: int | None) -> int:
    """The evidence level of a record from working hooks."""
    return max(LEVELS[record].level, answer_level(logprobs))


def rule_of(asked: Protocol, method: str | None) -> Protocol:
    """The rule that verifies; vLLM without a draft samples from p, which is the chain rule with nothing drafted."""
    return Protocol.GREEDY if asked is Protocol.GREEDY else RULES.get(method or "", Protocol.CHAIN)


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence, by its settings."""
    plan = settings.plan
    logprobs = plan.engine.get("logprobs", 0)
    answers = frozenset((Part.LOGPROBS,)) if logprobs is not None else frozenset()
    asked = plan.options.get("rejection_sample_method", "block" if plan.protocol is Protocol.BLOCK else None)
    probabilistic = plan.options.get("draft_sample_method") == "probabilistic"
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=level_of(plan.level, logprobs),
        parts=LEVELS[plan.level].parts | answers,
        protocol=rule_of(plan.protocol, asked),
        lossless=asked != "synthetic",
        drawn=plan.proposer in DRAWING and probabilistic and not settings.greedy,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
