"""The bounds of a server: bytes of a body, waiting choices, tokens, seconds."""

from dataclasses import dataclass
from typing import Final

GAMMA: Final = 4
ROWS: Final = 8
"""Most drafted tokens per step and choices decoded at once, where nobody names them."""


@dataclass(frozen=True, slots=True)
class ServeLimits:
    """The bounds of a server.

    body: most bytes of a request's body.
    queue: most choices that wait for a row.
    tokens: most tokens of one answer; a request that asks for more is refused.
    context: most tokens of a prompt and its answer together.
    seconds: most time of one request, waiting included.
    upload: most seconds in which a body arrives.
    drain: seconds that running requests have after SIGTERM.
    choices: most choices of one request, over all its prompts.
    top: most alternatives per token in log-probabilities.
    """

    context: int
    tokens: int
    body: int = 4 * 2**20
    queue: int = 1024
    seconds: float = 600.0
    upload: float = 60.0
    drain: float = 30.0
    choices: int = 128
    top: int = 20
