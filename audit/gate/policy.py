"""Policies: the requirements on a run, read from YAML."""

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
from audit.gate.policy_parts import NO_PARTS, NO_WORKLOAD, LeastWorkload, PolicyParts, duration_at, read_parts
from audit.text.documents import Document, Place, packaged_file, read_yaml
from audit.text.schema_errors import check_document, suggestion
from audit.text.unsafe import quoted

PACKAGED: Final[Mapping[str, str]] = {
    "standard": "5fbbda07b5c28d9f5edbdd59e19e2eb728adf3963999710b3c207082368187db",
    "strict": "228830553f2809a383d5fedffe7186ede2aa8876570a7c29e06f3bbcc193b206",
    "throughput": "73719874e9eca49da14e5ab50b96a3f34edd50b40da30c0db054ec71ce6a0949",
    "vllm": "f26527062d375787ba314467754a9fb50972a053e3d4f44733054abe6e39a4c7",
    "transformers": "a2f29679f78c7237d6eec004c633ba2dc7df051ac6c7a0fe71488e053fd1ef2e",
    "endpoint": "2627f29a34f237bf710864e3f9421f05518c0673d3e93a4935f39f74895a79b4",
}
"""The packaged policies: one per kind of engine, by the evidence that it reveals, and two more for the built-in one.

The digests are of bytes that the tests validated against the schema; `load_policy` validates all others.
"""
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
    own_coverage: bool
    """Directed requests must not have met them."""
    one_identity: bool
    """Of arms that a service answered: the check `identity` must certify them."""
    require_lossless: bool
    allow_known_bad: bool
    sha256: str
    document: Mapping[str, Any]
    parts: PolicyParts = NO_PARTS


def load_policy(name: str | Path) -> Policy:
    """Load a policy from a path, or a packaged one by name (`standard`, `suites/policies/standard.yaml`).

    A word without a slash and without `.yaml` is a packaged policy's name, whatever files the working folder holds.

    Raises:
        UserError: the first mistake, `path:LINE: what is wrong; what to do`.
    """
    document = read_yaml(_find(name))
    sha256 = hashlib.sha256(document.raw).hexdigest()
    if sha256 not in PACKAGED.values():  # the validator takes a tenth of the gate's time to import
        check_document(document, schemas.load("policy"))
    data = document.data
    evidence, subjects = data["evidence"], data.get("subjects", {})
    return Policy(
        name=data["name"],
        require=tuple(_requirement(document, index, entry) for index, entry in enumerate(data["require"])),
        min_tokens=int(evidence["min_tokens"]),
        max_age=duration_at(document, ("evidence", "max_age"), evidence["max_age"]),
        min_level=Level[evidence.get("min_level", "L0")],
        suites=tuple(digest.removeprefix("sha256:") for digest in evidence.get("suites", ())),
        digests={role: digest.removeprefix("sha256:") for role, digest in subjects.get("digests", {}).items()},
        named=tuple(subjects.get("named", ())),
        named_if_used=tuple(subjects.get("named_if_used", ())),
        coverage=data.get("coverage", {}),
        own_coverage=data.get("own_coverage", False),
        one_identity=data.get("one_identity", False),
        require_lossless=data.get("require_lossless", False),
        allow_known_bad=data.get("allow_known_bad", False),
        sha256=sha256,
        document=data,
        parts=_parts(document, packaged=sha256 in PACKAGED.values()),
    )


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
