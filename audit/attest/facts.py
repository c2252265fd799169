"""Facts for a statement about a run: the run, its verdicts, its registrations and its place in the log."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from audit.attest.statement import StatementSubject
from audit.errors import CannotDecide, UserError
from audit.store import RunStatus, Store, StoredArm, StoredCheck, StoredRun
from audit.store.base.governance import Governance, governance
from audit.store.reading.attestations import StoredRegistration

VERIFIER: Final = "https://specaudit.dev"


@dataclass(frozen=True, slots=True)
class AttestedRun:
    """A finished run whose record is intact. `proof` is None where no checkpoint covers the run."""

    run: StoredRun
    checks: tuple[StoredCheck, ...]
    registrations: tuple[StoredRegistration, ...]
    proof: Mapping[str, Any] | None

    @property
    def candidates(self) -> tuple[StoredArm, ...]:
        """The arms under audit."""
        return self.run.candidates

    @property
    def registered_first(self) -> bool:
        """True if the suite was registered before the run began."""
        return any(item.precedes for item in self.registrations)


def read_run(store: Store, name: str) -> AttestedRun:
    """The facts about a run.

    Raises:
        UserError: no such run.
        CannotDecide: the run is unfinished or its record is not intact.
    """
    ulid = store.resolve(name)
    run = store.load_run(ulid)
    if run.status is not RunStatus.FINISHED or run.record_root is None or run.finished_at is None:
        raise CannotDecide(f"run {ulid} is {run.status}, not finished; there is nothing to attest yet")
    broken = store.broken_places(ulid)
    if broken:
        raise CannotDecide(f"run {ulid}: {broken[0].place}: {broken[0].message}; run the suite again")
    return AttestedRun(run, store.checks(ulid), store.attestations.registrations(ulid), _proof(store, ulid))


def _proof(store: Store, ulid: str) -> Mapping[str, Any] | None:
    try:
        return store.prove(ulid)
    except UserError:
        return None


def subjects_of(run: StoredRun) -> tuple[StatementSubject, ...]:
    """Models and tokenizers, the engine's configuration of each arm under audit, and the record root."""
    models = [StatementSubject(artifact_name(used.kind, used.role), used.sha256) for used in run.artifacts]
    engines = [StatementSubject(f"engine/{arm.name}", arm.configuration_sha256) for arm in run.candidates]
    return (*models, *engines, StatementSubject(f"run/{run.ulid}", str(run.record_root)))


def artifact_name(kind: str, role: str) -> str:
    """A model's name as a subject: its role in the run, behind its kind where they differ."""
    return role if role == kind else f"{kind}/{role}"


def governance_of(run: StoredRun, arm: StoredArm) -> Governance:
    """The arm's speculation settings."""
    return governance(arm.spec, arm.effective.to_json(), arm.lossless, run.environment.packages)


def tool() -> dict[str, str]:
    """Name and version of this program."""
    try:
        return {"name": "specaudit", "version": metadata.version("specaudit")}
    except metadata.PackageNotFoundError:
        return {"name": "specaudit", "version": "unknown"}
