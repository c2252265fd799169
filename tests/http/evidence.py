"""Arms of test servers as the checks see them."""

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from engine.record.effective import Effective
from engine.record.trace import decode


def arm_of(generations, kind=ArmKind.CANDIDATE):
    """The arm of answered requests."""
    records = []
    for found in generations:
        facts = (decode(found.trace), found.tokens, found.text, found.finish_reason)
        records.append(RequestRecord(found.request.id, found.request.id, 0, "chat", *facts, 1, intact=True))
    return ArmRecord(kind.value, kind, Level.L1, Effective(), tuple(records))


def verdict(name, candidate, baseline=None, control=None):
    """A check's result on generations."""
    others = [(baseline, ArmKind.BASELINE), (control, ArmKind.CONTROL)]
    arms = [arm_of(generations, kind) for generations, kind in others if generations is not None]
    return evaluate(checks.load(name), Evidence(arm_of(candidate), *arms), {})
