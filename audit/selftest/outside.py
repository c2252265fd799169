"""Evidence as visible outside the engine: text and finish reasons, optionally with log-probabilities.

The module rewrites the candidate's records as those of an engine that decodes one
token at a time, so that checks see only what an interface would give. Baseline,
control and passes over given tokens stay complete, because they are the auditor's own runs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from audit.evidence.records import ArmRecord, Evidence, Level, RequestRecord
from engine.core.types import Emitted, Proposal, RecordLevel, Role, StepOutcome, StepRecord
from engine.record.effective import Effective
from engine.record.recorder import to_trace
from engine.record.reduction import reduce
from engine.record.trace import Trace


def from_outside(evidence: Evidence, level: Level) -> Evidence:
    """Return the evidence with the candidate's arms reduced to `level`, L0 or L1."""
    companions = {kind: arm if kind.reads else _reduced(arm, level) for kind, arm in evidence.companions.items()}
    return replace(evidence, candidate=_reduced(evidence.candidate, level), companions=companions)


def _reduced(arm: ArmRecord, level: Level) -> ArmRecord:
    requests = tuple(_plain(request, level) for request in arm.requests)
    return replace(arm, level=level, effective=Effective(), requests=requests)


def _plain(request: RequestRecord, level: Level) -> RequestRecord:
    return replace(request, trace=plain_trace(request.trace, level))


def plain_trace(trace: Trace, level: Level) -> Trace:
    """One step per emitted token, nothing drafted; log-probabilities at L1, no other number."""
    header = replace(trace.header, level=RecordLevel.TOKENS, proposer="not told")
    start = len(header.prompt)
    records = [_step(index, start + index, token, header.vocabulary) for index, token in enumerate(trace.tokens)]
    plain = to_trace(header, [reduce(header, records)])
    return replace(plain, logprob=trace.logprob) if level >= Level.L1 else plain


def _step(index: int, position: int, token: int, vocabulary: int) -> StepRecord:
    verdict = StepOutcome((Emitted(token, Role.PLAIN, 0, float("nan")),))
    return StepRecord(index, position, Proposal(), verdict, np.empty((0, vocabulary), np.float32), None)
