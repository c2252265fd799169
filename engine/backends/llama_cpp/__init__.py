"""llama.cpp as a backend: its own server in a process of its own, asked over HTTP with token ids.

The server runs in `driver`, which needs xllamacpp and numpy only. An answer reports tokens, log-probabilities, and the
numbers of drafted and accepted tokens, but neither drafts nor rows. The package imports without xllamacpp and needs it
at the first request of an arm.
"""

from typing import Final

from engine.backends.llama_cpp.settings import DECLARED, WORDS
from engine.backends.process.settings import backend_kind

KIND: Final = backend_kind(
    WORDS, DECLARED, ("greedy", "chain", "gumbel"), "engine.backends.llama_cpp.backend:LlamaBackend"
)
