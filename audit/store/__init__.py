"""The provenance store of runs, environments, evidence and verdicts."""

from audit.store.connection import default_url
from audit.store.store import Store
from audit.store.values import (
    ArmCounts,
    ArtifactRef,
    Attachment,
    NewArm,
    NewCheck,
    NewJudgement,
    NewRun,
    RequestKey,
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
from audit.store.writer import NewRequest

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
