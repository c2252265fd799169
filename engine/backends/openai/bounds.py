"""Limits of one answer of a server: bytes, characters, tokens.

The limits follow from the request, with room for servers that say much besides: a program that asks for a hundred
tokens need not hold a gigabyte in memory because a server sends one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from engine.backends.openai.errors import malformed
from engine.backends.openai.response import Completion

PAGE_BYTES: Final = 8 * 2**20
"""Of a page that no request asks tokens of, such as the list of models."""
MOST_BYTES: Final = 64 * 2**20
"""Of any answer."""
LEAST_BYTES: Final = 2**20
BYTES_PER_TOKEN: Final = 4096
"""A streamed chunk with its frame, and the token's own log-probability."""
BYTES_PER_RIVAL: Final = 512
CHARACTERS_PER_TOKEN: Final = 256
SPARE: Final = 4096
"""Characters and tokens beyond those that a request asks for."""


def answer_bytes(body: Mapping[str, Any]) -> int:
    """The most bytes of an answer to this request, on the wire: servers may repeat the prompt too."""
    rivals = body.get("top_logprobs", body.get("logprobs", 0))
    per_token = BYTES_PER_TOKEN + BYTES_PER_RIVAL * int(rivals)
    asked = LEAST_BYTES + 8 * len(json.dumps(body)) + _length(body) * per_token
    return min(MOST_BYTES, asked)


def require_size(answer: Completion, body: Mapping[str, Any]) -> Completion:
    """The answer, if its texts and tokens can come from as many tokens as were asked for.

    Raises:
        AttemptError: it holds far more.
    """
    tokens, characters = SPARE + 2 * _length(body), SPARE + CHARACTERS_PER_TOKEN * _length(body)
    if len(answer.text) > characters:
        raise malformed(f"{len(answer.text)} characters were sent for {_length(body)} tokens")
    count = max(len(answer.token_ids or ()), len(answer.pieces or ()), len(answer.chunks))
    if count > tokens:
        raise malformed(f"{count} tokens were sent, {_length(body)} were asked for")
    return answer


def _length(body: Mapping[str, Any]) -> int:
    return int(body.get("max_completion_tokens", body.get("max_tokens", 0)))
