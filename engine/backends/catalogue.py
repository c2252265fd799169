"""A backend's facts, which a suite is read by: each backend states its own once, in a `BackendKind`.

The module that states them imports neither torch nor the engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.backends.access import OutsideAccess
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.evidence import Declaration
from engine.core.registry import load
from engine.core.structured import ConstraintSpec


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
"""Choices of a loop that constrains no token: to look for calls, or not to."""
ALL_CHOICES = (*READ_CHOICES, "required", NAMED)
"""Choices of a loop with grammars."""


@dataclass(frozen=True, slots=True)
class BackendKind:
    """One backend.

    open: opens the models of a suite.
    evidence: the evidence in its records.
    sources: the kinds of source that its models may have.
    proposers: the proposers that an arm may use; None allows every one in `engine.proposers.REGISTRY`.
    rules: the verification rules that an arm may request; None allows all.
    options: name of the JSON schema of the suite's `engine` mapping; None if it takes none.
    tokens: accepts prompts as token ids.
    tool_choices: the kinds of tool choice that it can carry out; NAMED for the name of one tool.
    asked: why a server with these engine settings cannot be asked for a grammar, or None; None if none can be asked.
    outside: what engine settings and proposer options touch outside the suite; None if they name nothing there.
    ours: decodes with the built-in engine's loop, so a suite may choose weights and numerics.
    faults: the registry of the faults that an arm may be given on purpose.
    cancels: can cancel a request while it is answered.
    """

    open: Callable[[Mapping[str, ModelSource]], Backend]
    evidence: Declaration
    sources: tuple[SourceKind, ...] = WEIGHTS
    proposers: tuple[str, ...] | None = None
    rules: tuple[str, ...] | None = None
    options: str | None = None
    tokens: bool = True
    tool_choices: tuple[str, ...] = ("auto",)
    asked: Callable[[Mapping[str, Any], ConstraintSpec], str | None] | None = None
    outside: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[OutsideAccess, ...]] | None = None
    ours: bool = False
    faults: Mapping[str, str] = field(default_factory=dict)
    cancels: bool = False


def opener(place: str) -> Callable[[Mapping[str, ModelSource]], Backend]:
    """Opens models by the callable at `module:attribute`, which is imported then.

    A backend's facts are read without torch, and a driver that imports the backend's package must not load it.
    """

    def open_models(models: Mapping[str, ModelSource]) -> Backend:
        opened: Backend = load(place)(models)
        return opened

    return open_models
