"""Policies: the requirements on a run, read from YAML."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Final

import schemas
from audit.checks import REGISTRY
from audit.errors import UserError
from audit.evidence.records import Level
from audit.text.documents import Document, Place, packaged_file, quoted, read_yaml
from audit.text.schema_errors import check_document, suggestion

SHORT: Final = re.compile(r"(?P<number>[0-9]{1,6})(?P<unit>[wdhms])")
ISO: Final = re.compile(
    r"P(?=.)((?P<weeks>[0-9]{1,6})W)?((?P<days>[0-9]{1,6})D)?"
    r"(T(?=.)((?P<hours>[0-9]{1,6})H)?((?P<minutes>[0-9]{1,6})M)?((?P<seconds>[0-9]{1,6})S)?)?"
)
PACKAGED: Final[Mapping[str, str]] = {
    "standard": "806a06fb8c465718261485549b4e1aa76ca5db3f6ec56acf3a98e81207843dd4",
    "vllm": "9e3b69d5d3852bdfb0ee02728a2280b4c539ed88825ab960399d58b42b0e5d68",
    "transformers": "657a71cf5be4dc1e3966690818bbb6adf86a019875c34b6c77f4703d92a69189",
    "endpoint": "5af82a53b25ed7b73fee02a63c6860a8807a64301f4888f52197085112555f4f",
}
"""The packaged policies: one per kind of engine, by the evidence that it reveals.

The digests are of bytes that the tests validated against the schema; `load_policy` validates all others.
"""
SUFFIXES: Final = (".yaml", ".yml")
UNITS: Final[Mapping[str, str]] = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


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
        max_age=_age(document, evidence["max_age"]),
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
    )


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
        if check not in REGISTRY:
            place: Place = ("require", index, "checks", position)
            raise document.error(place, f"unknown check {quoted(check)}; {suggestion(check, REGISTRY)}")
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
    )


def _age(document: Document, text: str) -> timedelta:
    age = parse_duration(text)
    if not age:
        problem = f"max_age is {quoted(text)}; write a duration like 30d, 12h, P30D or PT12H"
        raise document.error(("evidence", "max_age"), problem)
    return age


def parse_duration(text: str) -> timedelta | None:
    """A duration such as 30d or P1DT12H; None if the text is not one. Years and months have no fixed length."""
    short = SHORT.fullmatch(text)
    if short:
        return timedelta(**{UNITS[short["unit"]]: int(short["number"])})
    iso = ISO.fullmatch(text)
    return timedelta(**{unit: int(value or 0) for unit, value in iso.groupdict().items()}) if iso else None


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
