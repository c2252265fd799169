"""What an endpoint shows of an engine's requests: their tokens, one step each, and no p, q, draft or random number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from engine.core.types import RecordLevel
from engine.record.effective import Effective, LoopOwner
from engine.record.foreign.requests import ForeignRecord, observed_trace
from engine.record.foreign.steps import ForeignStep
from engine.record.trace import decode

FOREIGN = Effective(decoder=LoopOwner.FOREIGN)


def served(request: RequestRecord, tokens: Sequence[int] | None = None, origin: str = "server") -> RequestRecord:
    """The record of an endpoint that answers as the request did, or with other `tokens`."""
    tokens = request.tokens if tokens is None else tuple(tokens)
    header = replace(request.trace.header, level=RecordLevel.TOKENS, proposer="served", facts={"tokens": origin})
    steps = tuple(ForeignStep((), (token,)) for token in tokens)
    return replace(request, tokens=tokens, trace=decode(observed_trace(header, ForeignRecord(steps))))


def served_arm(arm: ArmRecord) -> ArmRecord:
    """An arm at an endpoint."""
    return ArmRecord(arm.name, arm.kind, Level.L0, FOREIGN, tuple(map(served, arm.requests)))


def served_evidence(evidence: Evidence) -> Evidence:
    """The candidate as an endpoint shows it, with the target's rows on its tokens."""
    companions = {ArmKind.ANCHOR: evidence.companions[ArmKind.ANCHOR]}
    return Evidence(served_arm(evidence.candidate), None, None, companions)
