"""Any server that speaks OpenAI's protocol, as a backend.

The backend sees the engine only through its answers: text, plus token ids and log-probabilities if the server sends
them.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.engine_spec import Backend, ModelSource


def open_models(models: Mapping[str, ModelSource]) -> Backend:
    """The workshop of a suite; see `engine.backends.openai.models`.

    Raises:
        ModelError: the target's files are no model.
        InvalidRequest: models besides the target.
    """
    # imported late: the HTTP library is needed by only this backend
    from engine.backends.openai.models import OpenAIBackend

    return OpenAIBackend(models)
