"""onnxruntime-genai as a backend: its generator in a process of its own, read after every token.

The engine runs in `driver`, which needs onnxruntime-genai and numpy only. Every token comes with the growth of the
engine's own counters, which gives each round of speculation; the ids of refused drafts are not reported. The package
imports without onnxruntime-genai and needs it at an arm's first request.
"""

from typing import Final

from engine.backends.onnxruntime_genai.settings import DECLARED, WORDS
from engine.backends.process.settings import backend_kind

KIND: Final = backend_kind(WORDS, DECLARED, ("greedy", "chain"), "engine.backends.onnxruntime_genai.backend:OrtBackend")
