"""The provenance store of runs, environments, evidence and verdicts."""

from audit.store.base.connection import default_url
from audit.store.base.values import (
    ArmCounts,
    ArtifactRef,
    Attachment,
    NewArm,
    NewCheck,
    NewJudgement,
    NewRun,
    RequestKey,
    RunReason,
    RunStatus,
    RunSummary,
    SituationCount,
    StoredArm,
    StoredCheck,
    StoredCoverage,
    StoredDecision,
    StoredEvent,
    StoredJudgement,
    StoredRun,
)
from audit.store.store import Store
from audit.store.writing.request_writer import NewRequest

__all__ = [
    "ArmCounts",
    "ArtifactRef",
    "Attachment",
    "NewArm",
    "NewCheck",
    "NewJudgement",
    "NewRequest",
    "NewRun",
    "RequestKey",
    "RunReason",
    "RunStatus",
    "RunSummary",
    "SituationCount",
    "Store",
    "StoredArm",
    "StoredCheck",
    "StoredCoverage",
    "StoredDecision",
    "StoredEvent",
    "StoredJudgement",
    "StoredRun",
    "default_url",
]
