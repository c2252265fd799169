"""The engine's exceptions: each names what was wrong and carries its reason."""


class EngineError(Exception):
    """Any failure of the engine that its caller may want to report."""


class InvalidRequest(EngineError):
    """A request, sampling parameter or configuration value that cannot be served."""


class NoTokenLeft(InvalidRequest):
    """A request that cannot go on: its masks leave no token, or its grammar gave up."""


class ModelNeeded(InvalidRequest):
    """A proposer lacks the draft model or head that it needs."""


class ModelError(EngineError):
    """A model folder that is missing, incomplete or of an unsupported architecture."""


class NumericsRefused(EngineError):
    """A requested numerics mode whose promise does not hold on this machine."""


class CapacityError(EngineError):
    """A request that does not fit the model's context or the cache."""


class TraceError(EngineError):
    """A stored trace that cannot be decoded, with the place where reading stopped."""
