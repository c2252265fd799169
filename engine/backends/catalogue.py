"""What a suite may say of each backend, known before any of them is imported.

Values only. A backend is added by one entry of `engine.backends.REGISTRY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SourceKind(StrEnum):
    """Where a model may come from."""

    SCRIPTED = "scripted:"
    BUNDLED = "bundled:"
    HUB = "hf:"
    FOLDER = "folder"
    SERVED = "served:"
    """A name that an endpoint knows; there are no weights here."""


WEIGHTS = (SourceKind.FOLDER, SourceKind.BUNDLED, SourceKind.HUB)


@dataclass(frozen=True, slots=True)
class BackendKind:
    """One backend.

    open: `module:function` that opens the models of a suite.
    evidence: `module:name` of the `engine.backends.evidence.Declaration` of what its records show.
    sources: where its models may come from.
    proposers: what an arm may draft with; None is everything in `engine.proposers.REGISTRY`.
    rules: verification rules that an arm may ask for; None is all.
    options: name of the JSON schema of the suite's `engine` mapping; None where it takes none.
    tokens: takes prompts that are given as token ids.
    ours: decodes by the project's own loop, so that weights, numerics and faults are the suite's to choose.
    """

    open: str
    evidence: str
    sources: tuple[SourceKind, ...] = WEIGHTS
    proposers: tuple[str, ...] | None = None
    rules: tuple[str, ...] | None = None
    options: str | None = None
    tokens: bool = True
    ours: bool = False
