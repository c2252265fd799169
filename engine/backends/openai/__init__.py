"""Any server that speaks OpenAI's protocol, as a backend.

The backend sees the engine only through its answers: text, plus token ids and log-probabilities if the server sends
them.
"""

from engine.backends.catalogue import NAMED, READ_CHOICES, WEIGHTS, BackendKind, SourceKind, opener
from engine.backends.openai.settings import DECLARED, outside
from engine.backends.openai.structured import problem_of
from engine.core.registry import SERVICE_FAULTS

KIND = BackendKind(
    open=opener("engine.backends.openai.models:OpenAIBackend"),
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
