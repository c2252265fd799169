"""A header and a plain step for tests of recorded formats."""

import numpy as np

from engine.core.types import (
    Emitted,
    FinishReason,
    Proposal,
    Protocol,
    RecordLevel,
    Role,
    SamplingParams,
    StepOutcome,
    StepRecord,
    Timing,
)
from engine.record.trace import TraceHeader


def header(level=RecordLevel.FULL):
    return TraceHeader("r", level, Protocol.GUMBEL, True, "p", 4, 0, SamplingParams(), (), FinishReason.LENGTH, (0,))


def plain_step(logits, scores=None):
    verdict = StepOutcome((Emitted(1, Role.PLAIN, 0, 0.5),))
    return StepRecord(0, 1, Proposal(), verdict, np.array([logits]), scores, Timing(3, 5, 2))
