"""Any server that speaks OpenAI's protocol, as a backend.

What runs behind the address is seen through its answers alone: text, token ids
where the server names them, log-probabilities where it gives them.
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
    # imported late: the HTTP library is needed by this backend alone
    from engine.backends.openai.models import OpenAIBackend

    return OpenAIBackend(models)
