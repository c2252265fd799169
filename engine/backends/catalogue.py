"""The settings that a suite may give each backend, known before any backend is imported.

Values only. A backend is added by one entry of `engine.backends.REGISTRY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SourceKind(StrEnum):
    """The kinds of model source."""

    SCRIPTED = "scripted:"
    BUNDLED = "bundled:"
    HUB = "hf:"
    FOLDER = "folder"
    SERVED = "served:"
    """A model name at an endpoint; the weights are not on this machine."""


WEIGHTS = (SourceKind.FOLDER, SourceKind.BUNDLED, SourceKind.HUB)

NAMED = "a name"
"""The kind of a tool choice that names the tool to call."""
READ_CHOICES = ("auto", "none")
"""What a loop can carry out that constrains no token: to look for calls, or not to."""
ALL_CHOICES = (*READ_CHOICES, "required", NAMED)
"""What a loop with grammars can carry out."""


@dataclass(frozen=True, slots=True)
class BackendKind:
    """One backend.

    open: `module:function` that opens the models of a suite.
    evidence: `module:name` of the `engine.backends.evidence.Declaration` of the evidence in its records.
    sources: the kinds of source that its models may have.
    proposers: the proposers that an arm may use; None allows every one in `engine.proposers.REGISTRY`.
    rules: the verification rules that an arm may request; None allows all.
    options: name of the JSON schema of the suite's `engine` mapping; None if it takes none.
    tokens: accepts prompts as token ids.
    tool_choices: the kinds of tool choice that it can carry out; NAMED for the name of one tool.
    asked: `module:function` of `(engine settings, grammar) -> problem or None`, for a server that is asked;
        None if it cannot be asked.
    outside: `module:function` of `(engine settings, proposer options) -> tuple of OutsideAccess`; None if they name
        nothing outside the suite.
    ours: decodes with the built-in engine's loop, so a suite may choose weights, numerics and faults.
    """

    open: str
    evidence: str
    sources: tuple[SourceKind, ...] = WEIGHTS
    proposers: tuple[str, ...] | None = None
    rules: tuple[str, ...] | None = None
    options: str | None = None
    tokens: bool = True
    tool_choices: tuple[str, ...] = ("auto",)
    asked: str | None = None
    outside: str | None = None
    ours: bool = False
