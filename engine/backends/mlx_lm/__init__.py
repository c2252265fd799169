"""mlx_lm as a backend: its library in a process of its own, read token by token.

The engine runs in `driver`, which needs mlx, mlx_lm, numpy and blake3 only. Every token comes with the target's row and
with the engine's word on whether it was drafted; the sampler, which callers of the library give, sees the drafts too.
The package imports without mlx_lm and needs it at the first request of an arm.
"""

from typing import Final

from engine.backends.mlx_lm.settings import DECLARED, WORDS
from engine.backends.process.settings import backend_kind

KIND: Final = backend_kind(WORDS, DECLARED, ("greedy", "chain"), "engine.backends.mlx_lm.backend:MlxBackend")
