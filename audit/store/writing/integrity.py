"""Hashes that make a stored run tamper-evident, and their recomputation.

A record hash covers one request: its row, its steps, salted commitments to its content and trace, and its arm's
context, which covers the run's suite, artifacts, environment and configuration.

The record root is the Merkle root over the record hashes ordered by (arm, case, sample). A copy of the root kept
elsewhere reveals any later change. The log (`audit.store.ledger.log`) covers check results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Integer, select, type_coerce
from sqlalchemy.orm import Session

from audit.evidence.environment import fingerprint
from audit.store.base import commitments
from audit.store.base.canonical import sha256_json
from audit.store.base.governance import governance
from audit.store.base.merkle import merkle_root
from audit.store.base.values import IntegrityViolation
from audit.store.tables.content import ErasureRow
from audit.store.tables.runs import (
    ArmRow,
    ArmSpeculationRow,
    ArtifactRow,
    EnvironmentRow,
    RequestRow,
    RunArtifactRow,
    RunRow,
)
from audit.store.writing import contents, events
from audit.store.writing.contents import RequestParts

if TYPE_CHECKING:
    from engine.record import envelope

REQUEST_FIELDS: Final = (
    *("case_id", "sample", "domain", "sampling_sha256", "seed", "stream", "n_prompt", "n_output", "n_steps"),
    *("n_drafted", "n_accepted", "finish_reason", "latency_us"),
)
"""Columns of a request that its record hash covers."""
COMMITMENT_FIELDS: Final = ("prompt_commitment", "output_commitment", "trace_commitment", "tokens_commitment")
"""Columns of a request that its record hash also covers."""
RECORD_VERSION: Final = 1
"""Version of record hashes."""


@dataclass(frozen=True, slots=True, order=True)
class Leaf:
    """One request in the order of the tree."""

    arm: str
    case_id: str
    sample: int
    record_hash: str


def context_hash(run: dict[str, Any], arm: dict[str, Any]) -> str:
    """Digest of the facts that a run's requests of one arm share."""
    return sha256_json({"run": run, "arm": arm})


def run_context(session: Session, run: RunRow) -> dict[str, Any]:
    """The run's part of a context, read from its rows."""
    suite = session.get_one(ArtifactRow, run.suite_artifact_id)
    place = session.get_one(EnvironmentRow, run.environment_id)
    links = session.execute(
        select(RunArtifactRow.role, RunArtifactRow.name, RunArtifactRow.revision, ArtifactRow.kind, ArtifactRow.sha256)
        .join(ArtifactRow, ArtifactRow.id == RunArtifactRow.artifact_id)
        .where(RunArtifactRow.run_id == run.id)
    ).all()
    reason = {name: getattr(run, name) for name in ("purpose", "ticket") if getattr(run, name) is not None}
    return {
        **reason,
        "ulid": run.ulid,
        "suite": [run.suite_name, suite.sha256],
        "environment": place.sha256,
        "code_commit": run.code_commit,
        # Sorted here and not in SQL, because databases differ in their collation.
        "artifacts": sorted([list(link) for link in links], key=lambda link: (link[0], link[1])),
    }


def arm_context(arm: ArmRow) -> dict[str, Any]:
    """An arm's part of a context."""
    return {name: getattr(arm, name) for name in ("name", "kind", "level", "spec", "effective", "lossless")}


def speculation_of(arm: ArmRow, packages: Mapping[str, Any]) -> ArmSpeculationRow:
    """The row of `arm_speculation` that an arm's configuration gives."""
    settings = governance(arm.spec, arm.effective, arm.lossless, packages)
    return ArmSpeculationRow(arm_id=arm.id, **asdict(settings))


def _settings_broken(session: Session, run: RunRow, arm: ArmRow) -> bool:
    """True if the columns of an arm's settings differ from its configuration."""
    place = session.get_one(EnvironmentRow, run.environment_id)
    stored, expected = session.get(ArmSpeculationRow, arm.id), speculation_of(arm, place.packages)
    names = ArmSpeculationRow.__table__.columns.keys()
    # as a number: SQLite keeps any number as a truth value, and the mapped type reads each but 0 as true
    truth = session.scalar(
        select(type_coerce(ArmSpeculationRow.speculation, Integer)).where(ArmSpeculationRow.arm_id == arm.id)
    )
    if stored is None or truth != expected.speculation:
        return True
    return any(getattr(stored, name) != getattr(expected, name) for name in names)


def record_hash(context: str, request: Mapping[str, Any], steps: Mapping[str, str | None]) -> str:
    """Digest of one request from its columns and those of its steps, whose bytes count as stored."""
    fields = {name: request[name] for name in (*REQUEST_FIELDS, *COMMITMENT_FIELDS)}
    digest = hashlib.sha256(commitments.packed((steps["steps"], steps["draft_versions"]))).hexdigest()
    return sha256_json({"version": RECORD_VERSION, "context": context, "request": fields, "steps": digest})


def root_of(leaves: Iterable[Leaf]) -> str:
    """Hex Merkle root over record hashes ordered by (arm, case, sample)."""
    return merkle_root([bytes.fromhex(leaf.record_hash) for leaf in sorted(leaves)]).hex()


def stored_leaves(session: Session, run_id: int) -> list[Leaf]:
    """The stored record hashes of a run."""
    rows = session.execute(
        select(ArmRow.name, RequestRow.case_id, RequestRow.sample, RequestRow.record_hash)
        .join(ArmRow, ArmRow.id == RequestRow.arm_id)
        .where(RequestRow.run_id == run_id)
    )
    return [Leaf(*row) for row in rows]


def broken_places(session: Session, run: RunRow, *, rooted: bool = True) -> list[IntegrityViolation]:
    """Recompute every hash of a run; empty if all of them agree and, with `rooted`, the run has their root."""
    broken: list[IntegrityViolation] = []
    leaves: list[Leaf] = []
    facts = (session.get(ArtifactRow, run.suite_artifact_id), session.get(EnvironmentRow, run.environment_id))
    if None in facts:
        return [IntegrityViolation("run", "its suite or environment is missing")]
    on = session.get_one(EnvironmentRow, run.environment_id)
    if fingerprint(on.packages, on.hardware, on.code).sha256 != on.sha256:
        broken.append(IntegrityViolation("environment", "its packages, hardware or code were changed"))
    shared = run_context(session, run)
    for arm in session.scalars(select(ArmRow).where(ArmRow.run_id == run.id).order_by(ArmRow.id)):
        context = context_hash(shared, arm_context(arm))
        if context != arm.context_sha256:
            broken.append(IntegrityViolation(arm.name, "the arm's or the run's facts were changed"))
        if _settings_broken(session, run, arm):
            broken.append(IntegrityViolation(arm.name, "the columns of its speculation settings were changed"))
        own = select(RequestRow.id).where(RequestRow.arm_id == arm.id)
        erasures, happened = contents.erasures_of(session, run.id, own), events.stored(session, own)
        for parts in contents.parts_of(session, arm.id):
            request = parts.request
            place = f"{arm.name}/{request.case_id}#{request.sample}"
            bare = None if parts.trace is None else contents.intact(parts.trace.payload, parts.trace.sha256)
            text = _recomputed(parts, context, erasures.get(request.id), bare)
            if isinstance(text, IntegrityViolation):
                broken.append(IntegrityViolation(place, text.message))
            elif text != request.record_hash:
                broken.append(IntegrityViolation(place, "the request's row, steps or trace digest were changed"))
            elif (table := events.differing(happened.get(request.id, {}), bare)) is not None:
                broken.append(IntegrityViolation(place, f"its rows of {table} are not those of its trace"))
            leaves.append(Leaf(arm.name, request.case_id, request.sample, request.record_hash))
    findings = contents.broken_findings(session, run)
    return [*broken, *findings, *(_root_broken(run, leaves) if rooted else [])]


def _root_broken(run: RunRow, leaves: list[Leaf]) -> list[IntegrityViolation]:
    if run.record_root is None:
        return [IntegrityViolation("run", "it has no record root: it was never finished")]
    try:
        same = root_of(leaves) == run.record_root
    except ValueError:
        return [IntegrityViolation("run", "a record hash of it is no hash")]
    if not same:
        return [IntegrityViolation("run", "the record root differs: a request was added, removed or replaced")]
    return []


def _recomputed(
    parts: RequestParts, context: str, erasure: ErasureRow | None, bare: envelope.Opened | None
) -> str | IntegrityViolation:
    problem = contents.broken(parts, erasure, bare)
    if problem is not None:
        return IntegrityViolation("", problem)
    request, steps = parts.request, parts.steps
    if steps is None:
        return IntegrityViolation("", "its steps are missing")
    if request.record_version != RECORD_VERSION:
        return IntegrityViolation("", f"its record hash is of version {request.record_version}, which does not exist")
    fields = {name: getattr(request, name) for name in (*REQUEST_FIELDS, *COMMITMENT_FIELDS)}
    return record_hash(context, fields, {"steps": steps.steps, "draft_versions": steps.draft_versions})
