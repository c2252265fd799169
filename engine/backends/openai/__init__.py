"""Any server that speaks OpenAI's protocol, as a backend.

The backend sees the engine only through its answers: text, plus token ids and log-probabilities if the server sends
them.
"""

from collections.abc import Mapping

from engine.backends.catalogue import NAMED, READ_CHOICES, WEIGHTS, BackendKind, SourceKind
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.openai.settings import DECLARED, outside
from engine.backends.openai.structured import problem_of
from engine.core.registry import SERVICE_FAULTS


def open_models(models: Mapping[str, ModelSource]) -> Backend:
    """Open a suite's server; see `engine.backends.openai.models`.

    Raises:
        ModelError: the target's files are no model.
        InvalidRequest: models besides the target.
    """
    # imported late: the HTTP library is needed by only this backend
    from engine.backends.openai.models import OpenAIBackend

    return OpenAIBackend(models)


KIND = BackendKind(
    open=open_models,
    evidence=DECLARED,
    sources=(*WEIGHTS, SourceKind.SERVED),
    proposers=("served",),
    rules=("greedy", "chain", "gumbel"),
    options="engine-openai",
    tokens=False,
    tool_choices=(*READ_CHOICES, "required", NAMED),
    asked=problem_of,
    outside=outside,
    faults=SERVICE_FAULTS,
    cancels=True,
)
