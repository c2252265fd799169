"""Backends, one file or folder each, behind one protocol.

A backend states its facts in a `BackendKind` (`engine.backends.catalogue`), which one line of
`engine.core.registry.BACKENDS` names. It opens the models of a suite once and then makes one `Engine` per arm.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.backends.access import OutsideAccess
from engine.backends.catalogue import BackendKind
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.evidence import Declaration
from engine.core.errors import InvalidRequest
from engine.core.registry import BACKENDS, resolve
from engine.core.structured import ConstraintSpec


class BackendKinds(Mapping[str, BackendKind]):
    """The facts of every registered backend, imported on use."""

    def __getitem__(self, name: str) -> BackendKind:
        kind: BackendKind = resolve({name: BACKENDS[name]}, name, "backend")
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(BACKENDS)

    def __len__(self) -> int:
        return len(BACKENDS)


REGISTRY: Final = BackendKinds()


def declared(backend: str) -> Declaration:
    """The evidence in the backend's records; imports neither torch nor the engine behind it."""
    return REGISTRY[backend].evidence


def grammar_problem(backend: str, engine: Mapping[str, Any], spec: ConstraintSpec) -> str | None:
    """Why an arm of another engine, with these engine settings, cannot have a grammar; None if it can."""
    asked = REGISTRY[backend].asked
    return f"backend {backend} has no grammars; remove structured" if asked is None else asked(engine, spec)


def outside_access(backend: str, engine: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """Access outside the suite by an arm's engine settings and proposer options.

    Raises:
        InvalidRequest: a setting that cannot be read, such as an address without a host.
    """
    outside = REGISTRY[backend].outside
    return () if outside is None else outside(engine, options)


def open_backend(kind: str, models: Mapping[str, ModelSource]) -> Backend:
    """Load a suite's models into a backend.

    Raises:
        InvalidRequest: unknown backend, or one whose package is not installed.
        ModelError: a model that cannot be loaded, named.
    """
    if kind not in REGISTRY:
        raise InvalidRequest(f"unknown backend {kind!r}; known: {', '.join(sorted(REGISTRY))}")
    try:
        return REGISTRY[kind].open(models)
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"backend {kind} needs the package {error.name}, which {sys.executable} lacks; "
            "install it (native's come with pip install 'specaudit[engine]'), or run this where it is installed"
        ) from error
