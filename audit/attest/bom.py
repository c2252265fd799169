"""A CycloneDX 1.7 bill of materials of a run, in JSON: models with digests, packages, claims and their evidence.

Nothing in it is random, so the same run gives the same bytes.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from audit.attest.facts import AttestedRun, artifact_name, governance_of, tool
from audit.evidence.verdicts import Verdict
from audit.store import ArtifactRef, StoredArm
from audit.store.base.canonical import jsonable, sha256_json

MODELS: Final = frozenset({"target", "draft", "adapter"})
PACKAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def bom(facts: AttestedRun) -> dict[str, Any]:
    """The bill of materials."""
    run = facts.run
    models = [_model(facts, used) for used in run.artifacts]
    packages = list(_packages(facts))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{_uuid(facts)}",
        "version": 1,
        "metadata": {
            "timestamp": jsonable(run.finished_at),
            "tools": {"components": [{"type": "application", **tool()}]},
            "properties": [
                _property("run", run.ulid),
                _property("record_root", str(run.record_root)),
                _property("suite_sha256", run.suite_sha256),
                _property("exit_code", str(run.exit_code)),
                *(item for arm in facts.candidates for item in _arm(facts, arm)),
            ],
        },
        "components": [*models, *packages],
        "declarations": _declarations(facts),
    }


def _uuid(facts: AttestedRun) -> str:
    """A UUID of version 8, the one for digests of one's own, of the run's record."""
    digest = sha256_json(["bom", facts.run.ulid, facts.run.record_root])
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"specaudit:{name}", "value": value}


def _arm(facts: AttestedRun, arm: StoredArm) -> Iterator[dict[str, str]]:
    """The speculation of an arm under audit, as properties."""
    settings = governance_of(facts.run, arm)
    stated = {**asdict(settings), "drafted": arm.counts.drafted, "accepted": arm.counts.accepted}
    yield _property(f"engine/{arm.name}:configuration_sha256", arm.configuration_sha256)
    for name, value in stated.items():
        if value is not None:
            yield _property(f"engine/{arm.name}:{name}", str(value))


def _model(facts: AttestedRun, used: ArtifactRef) -> dict[str, Any]:
    name = artifact_name(used.kind, used.role)
    component: dict[str, Any] = {
        "type": "machine-learning-model" if used.kind in MODELS else "data",
        "bom-ref": name,
        "name": used.name,
        "hashes": [{"alg": "SHA-256", "content": used.sha256}],
        "properties": [_property("role", used.role)],
    }
    if used.revision is not None:
        component["version"] = used.revision
    if used.kind == "target":
        component["modelCard"] = {"quantitativeAnalysis": {"performanceMetrics": list(_metrics(facts))}}
    return component


def _metrics(facts: AttestedRun) -> Iterator[dict[str, str]]:
    """The bound of every check of an arm under audit that has one."""
    names = {arm.name for arm in facts.candidates}
    for check in facts.checks:
        bound = jsonable(check.bound)
        if check.arm in names and bound is not None:
            yield {"type": f"{check.check}: bound", "value": str(bound), "slice": f"arm {check.arm}"}


def _packages(facts: AttestedRun) -> Iterator[dict[str, str]]:
    for name, version in sorted(facts.run.environment.packages.items()):
        if PACKAGE.fullmatch(name):
            # a reference of its own, since a model may have a package's name
            yield {"type": "library", "bom-ref": f"package/{name}", "name": name, "version": version}


def _declarations(facts: AttestedRun) -> dict[str, Any]:
    """Each certified check as a claim about the target, with the run's record as its evidence."""
    target = next((used for used in facts.run.artifacts if used.kind == "target"), None)
    if target is None:
        return {}
    certified = [check for check in facts.checks if check.verdict is Verdict.CERTIFIED]
    evidence = {
        "bom-ref": "evidence",
        "description": f"record of run {facts.run.ulid}, root sha256:{facts.run.record_root}",
        "created": jsonable(facts.run.finished_at),
    }
    claims = [
        {
            "bom-ref": f"claim/{check.arm}/{check.check}",
            "target": artifact_name(target.kind, target.role),
            "predicate": f"{check.claim}: {check.check} certified for arm {check.arm}",
            "evidence": ["evidence"],
        }
        for check in certified
    ]
    return {"claims": claims, "evidence": [evidence]}
