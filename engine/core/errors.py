"""The engine's exceptions: each names what was wrong and carries its reason."""

from __future__ import annotations


class EngineError(Exception):
    """Any failure of the engine that its caller may want to report."""


class InvalidRequest(EngineError):
    """A request, sampling parameter or configuration value that cannot be served."""


class ModelNeeded(InvalidRequest):
    """A proposer was to be built without the draft model or head that it drafts with."""


class ModelError(EngineError):
    """A model folder that is missing, incomplete or of an unsupported architecture."""


class NumericsRefused(EngineError):
    """A numerics mode that was asked for and whose promise this machine does not keep."""


class CapacityError(EngineError):
    """A request that does not fit the model's context or the cache."""


class TraceError(EngineError):
    """A stored trace that cannot be decoded, with the place where reading stopped."""
