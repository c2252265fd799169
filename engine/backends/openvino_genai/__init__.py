"""OpenVINO GenAI as a backend: its continuous batching in a process of its own, read after every step.

The engine runs in `driver`, which needs openvino-genai and numpy only. A step reports the tokens that it committed and
their log-probabilities, but neither drafts nor rows. The package imports without openvino-genai and needs it at the
first request of an arm.
"""

from typing import Final

from engine.backends.openvino_genai.settings import DECLARED, WORDS
from engine.backends.process.settings import backend_kind

KIND: Final = backend_kind(
    WORDS, DECLARED, ("greedy", "chain"), "engine.backends.openvino_genai.backend:OpenVinoBackend"
)
