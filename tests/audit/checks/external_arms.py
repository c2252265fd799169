"""Arms of an engine that is not ours, made of records without an engine."""

from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams
from engine.record.effective import Effective
from engine.record.foreign.requests import ForeignEngine, ForeignRecord, failed_trace, header_of, observed_trace
from engine.record.foreign.steps import ForeignStep
from engine.record.trace import decode

WHAT = ForeignEngine(32, (), Protocol.CHAIN, "ngram", RecordLevel.TOKENS)
SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=8)


def answered(index, facts=None):
    request = Request(f"candidate/case-{index}#0", (1, 2), SAMPLING, index)
    header = header_of(request, WHAT, FinishReason.LENGTH, facts or {})
    trace = decode(observed_trace(header, ForeignRecord((ForeignStep((3, 4), (3, 5), 1), ForeignStep((), (6,))))))
    return record(index, trace, (3, 5, 6), FinishReason.LENGTH)


def failed(index, kind="engine_died", message="the engine died"):
    request = Request(f"candidate/case-{index}#0", (1, 2), SAMPLING, index)
    facts = {"error": {"kind": kind, "message": message}}
    trace = decode(failed_trace(header_of(request, WHAT, FinishReason.ERROR, facts)))
    return record(index, trace, (), FinishReason.ERROR)


def record(index, trace, tokens, reason):
    return RequestRecord(trace.header.request, f"case-{index}", 0, "chat", trace, tokens, "", reason, 1, intact=True)


def evidence(requests, lost=(), effective=None, level=Level.L0):
    arm = ArmRecord(
        "candidate", ArmKind.CANDIDATE, level, Effective.from_json(effective or {}), tuple(requests), tuple(lost)
    )
    return Evidence(arm)
