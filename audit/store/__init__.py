"""The provenance store: what ran, on what, with which evidence and which verdicts."""

from audit.store.connection import default_url
from audit.store.store import Store
from audit.store.values import (
    ArmFacts,
    ArmStart,
    ArtifactRef,
    Attachment,
    Counts,
    Decision,
    RequestKey,
    RunEventRecord,
    RunRecord,
    RunStart,
    RunStatus,
    RunSummary,
    StoredCheck,
)
from audit.store.writer import NewRequest

__all__ = [
    "ArmFacts",
    "ArmStart",
    "ArtifactRef",
    "Attachment",
    "Counts",
    "Decision",
    "NewRequest",
    "RequestKey",
    "RunEventRecord",
    "RunRecord",
    "RunStart",
    "RunStatus",
    "RunSummary",
    "Store",
    "StoredCheck",
    "default_url",
]
