"""Check `text` on the generations of any backend."""

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from engine.record.effective import Effective
from engine.record.trace import decode


def text_verdict(generations):
    """The check's result on an arm of these generations."""
    records = []
    for found in generations:
        facts = (decode(found.trace), found.tokens, found.text, found.finish_reason)
        records.append(RequestRecord(found.request.id, found.request.id, 0, "chat", *facts, 1, intact=True))
    arm = ArmRecord("candidate", ArmKind.CANDIDATE, Level.L1, Effective(), tuple(records))
    return evaluate(checks.load("text"), Evidence(arm), {})
