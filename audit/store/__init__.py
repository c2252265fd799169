"""The provenance store of runs, environments, evidence and verdicts."""

from audit.store.base.connection import default_url as default_url
from audit.store.base.values import ArmCounts as ArmCounts
from audit.store.base.values import ArtifactRef as ArtifactRef
from audit.store.base.values import Attachment as Attachment
from audit.store.base.values import NewArm as NewArm
from audit.store.base.values import NewCheck as NewCheck
from audit.store.base.values import NewJudgement as NewJudgement
from audit.store.base.values import NewRun as NewRun
from audit.store.base.values import RequestKey as RequestKey
from audit.store.base.values import RunReason as RunReason
from audit.store.base.values import RunStatus as RunStatus
from audit.store.base.values import RunSummary as RunSummary
from audit.store.base.values import SituationCount as SituationCount
from audit.store.base.values import StoredArm as StoredArm
from audit.store.base.values import StoredCheck as StoredCheck
from audit.store.base.values import StoredCoverage as StoredCoverage
from audit.store.base.values import StoredDecision as StoredDecision
from audit.store.base.values import StoredEvent as StoredEvent
from audit.store.base.values import StoredJudgement as StoredJudgement
from audit.store.base.values import StoredRun as StoredRun
from audit.store.store import Store as Store
from audit.store.writing.request_writer import NewRequest as NewRequest
