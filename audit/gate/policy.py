"""Policies: the requirements on a run, read from YAML."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Final

import schemas
from audit.checks import REGISTRY
from audit.checks import load as load_check
from audit.errors import UserError
from audit.evidence.records import Level
from audit.gate.policy_parts import NO_WORKLOAD, VERSION_1, LeastWorkload, PolicyParts, duration_at, read_parts
from audit.text.documents import Document, Place, packaged_file, quoted, read_yaml
from audit.text.schema_errors import check_document, suggestion

PACKAGED: Final[Mapping[str, str]] = {
    "standard": "2bf28afb27a9a1d3f3f5117217bf5759ebea706bb96aa5fb4ced620b169352e5",
    "strict": "dc31d372fe3826bdf26ce3cced69dbce0f63c1cbb33fca3aa77de4ea8c84d9a8",
    "throughput": "7ac3a68fc7551ef8547ec7eaf5eae3c5aacfff721f66ba6c0441a99d6e5ce532",
    "vllm": "6a92ddd576fd1570dc0fec2492dc6e6446c60aca6644020ee8f8bf01e39446fb",
    "transformers": "88dab28af4b344b85ff79e68d33e98e4f0028b4e1c6b23a56eede7890c39e79a",
    "endpoint": "fd7df53043d370d6c98acb32683223a5e704bc8ec32a3027a762fd44c2b7dc72",
}
"""The packaged policies: one per kind of engine, by the evidence that it reveals, and two more for the built-in one.

The digests are of bytes that the tests validated against the schema; `load_policy` validates all others.
"""
SCHEMAS: Final[Mapping[int, str]] = {1: "policy-1", 2: "policy"}
"""The schema of each version of the format."""
SUFFIXES: Final = (".yaml", ".yml")


class Scope(StrEnum):
    """Whether each selected arm or only one of them must show a claim."""

    EACH_ARM = "each_arm"
    SOME_ARM = "some_arm"


@dataclass(frozen=True, slots=True)
class ArmFilter:
    """Selects the candidate arms of a requirement; an empty tuple or None selects all."""

    names: tuple[str, ...] = ()
    verifiers: tuple[str, ...] = ()
    greedy: bool | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """One claim, the checks that can show it, and the arms that must show it."""

    claim: str
    checks: tuple[str, ...]
    scope: Scope = Scope.EACH_ARM
    arms: ArmFilter = ArmFilter()
    workload: LeastWorkload = NO_WORKLOAD


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy. `sha256` is the digest of its YAML bytes, `document` its content as JSON."""

    name: str
    require: tuple[Requirement, ...]
    min_tokens: int
    max_age: timedelta
    min_level: Level
    suites: tuple[str, ...]
    """Hex digests of the accepted suites; empty accepts any."""
    digests: Mapping[str, str]
    """Hex digests by role."""
    named: tuple[str, ...]
    """Roles that the deployment must name."""
    named_if_used: tuple[str, ...]
    """Roles that the deployment must name if a candidate arm used such a model."""
    coverage: Mapping[str, int]
    """Smallest number of examinations by situation."""
    require_lossless: bool
    allow_known_bad: bool
    sha256: str
    document: Mapping[str, Any]
    parts: PolicyParts = VERSION_1


def load_policy(name: str | Path) -> Policy:
    """Load a policy from a path, or a packaged one by name (`standard`, `suites/policies/standard.yaml`).

    A word without a slash and without `.yaml` is a packaged policy's name, whatever files the working folder holds.

    Raises:
        UserError: the first mistake, `path:LINE: what is wrong; what to do`.
    """
    document = read_yaml(_find(name))
    sha256 = hashlib.sha256(document.raw).hexdigest()
    if sha256 not in PACKAGED.values():  # the validator takes a tenth of the gate's time to import
        check_document(document, schemas.load(SCHEMAS.get(_version(document), "policy")))
    data = document.data
    evidence, subjects = data["evidence"], data.get("subjects", {})
    return Policy(
        name=data["name"],
        require=tuple(_requirement(document, index, entry) for index, entry in enumerate(data["require"])),
        min_tokens=int(evidence["min_tokens"]),
        max_age=duration_at(document, ("evidence", "max_age"), evidence["max_age"]),
        min_level=Level[evidence.get("min_level", "L0")],
        suites=tuple(_hex(digest) for digest in evidence.get("suites", ())),
        digests={role: _hex(digest) for role, digest in subjects.get("digests", {}).items()},
        named=tuple(subjects.get("named", ())),
        named_if_used=tuple(subjects.get("named_if_used", ())),
        coverage=data.get("coverage", {}),
        require_lossless=data.get("require_lossless", False),
        allow_known_bad=data.get("allow_known_bad", False),
        sha256=sha256,
        document=data,
        parts=_parts(document, packaged=sha256 in PACKAGED.values()),
    )


def _version(document: Document) -> int:
    version = document.data.get("version") if isinstance(document.data, Mapping) else None
    return version if isinstance(version, int) else 2


def _parts(document: Document, *, packaged: bool) -> PolicyParts:
    limited = {} if packaged else document.data.get("parameters", {})
    for check, limits in limited.items():
        _require_check(document, ("parameters", check), check)
        for name in limits:
            known = load_check(check).defaults
            if name not in known:
                problem = f"{check} has no parameter {quoted(name)}; {suggestion(name, known)}"
                raise document.error(("parameters", check, name), problem)
    return read_parts(document)


def _require_check(document: Document, place: Place, check: str) -> None:
    if check not in REGISTRY:
        raise document.error(place, f"unknown check {quoted(check)}; {suggestion(check, REGISTRY)}")


def _find(name: str | Path) -> Path:
    path, pure = Path(name), PurePosixPath(str(name))
    # a file called `standard` in the working folder must not replace the policy of that name
    word = str(name) == pure.name and pure.suffix not in SUFFIXES
    if path.is_file() and not word:
        return path
    stem = pure.stem if pure.suffix in SUFFIXES else pure.name
    if stem in PACKAGED and str(pure.parent) in (".", "suites/policies", "policies"):
        packaged = packaged_file(f"policies/{stem}.yaml")
        if packaged is not None:
            return packaged
    if word:
        known = f"{suggestion(stem, PACKAGED)}; a file needs a slash or .yaml, as in ./{stem}"
        raise UserError(f"--policy {quoted(stem)}: no packaged policy of that name; {known}")
    return path


def _requirement(document: Document, index: int, entry: Mapping[str, Any]) -> Requirement:
    for position, check in enumerate(entry["checks"]):
        _require_check(document, ("require", index, "checks", position), check)
    arms = entry.get("arms", {})
    temperature = arms.get("temperature")
    return Requirement(
        claim=entry["claim"],
        checks=tuple(entry["checks"]),
        scope=Scope(entry.get("scope", Scope.EACH_ARM)),
        arms=ArmFilter(
            names=tuple(arms.get("names", ())),
            verifiers=tuple(arms.get("verifiers", ())),
            greedy=None if temperature is None else temperature == "zero",
        ),
        workload=LeastWorkload(**entry.get("workload", {})),
    )


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
