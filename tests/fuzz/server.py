"""Answers of an endpoint, as its parsers see them: whole documents, parts of a stream, pages of metrics."""

from __future__ import annotations

import json
from typing import Any, Final

from engine.backends.openai.documents import parse
from engine.backends.openai.errors import AttemptError
from engine.backends.openai.rate_limit import retry_after
from engine.backends.openai.response import Collector, read
from engine.backends.openai.server_counters import counters, speculates
from engine.core.errors import EngineError
from tests.fuzz.contract import Violation
from tests.fuzz.edits import Edit, as_text, edited_bytes, edited_tree

CHAT: Final = {
    "id": "a",
    "model": "m",
    "prompt_token_ids": [7, 8],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi you", "tool_calls": []},
            "finish_reason": "stop",
            "token_ids": [1, 2],
            "logprobs": {"content": [{"token": "Hi", "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}]}]},
        }
    ],
    "usage": {"completion_tokens": 2},
}
STREAM: Final = [
    {"id": "a", "model": "m", "prompt_token_ids": [7], "choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"id": "a", "choices": [{"delta": {"content": "Hi"}, "token_ids": [1], "logprobs": {"content": []}}]},
    {"id": "a", "choices": [{"delta": {"content": " you"}, "token_ids": [2], "finish_reason": "stop"}]},
    {"id": "a", "choices": [], "usage": {"completion_tokens": 2}},
]
METRICS: Final = (
    "# HELP vllm:spec_decode_num_drafts_total a\n"
    "# TYPE vllm:spec_decode_num_drafts_total counter\n"
    'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 12.0\n'
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3.0\n'
)


def answer_odd(edits: tuple[Edit, ...]) -> Violation | None:
    """Read one odd answer; a malformed one is an `AttemptError` of one line."""
    form = edits[0].at % 5
    try:
        if form < 2:
            read(_parsed(_text(CHAT, edits)))
        elif form < 4:
            _stream(edits)
        else:
            page = edited_bytes(METRICS.encode(), edits).decode("utf-8", "replace")
            counters(page)
            speculates(page)
            retry_after(str(edits[0].value))
    except (AttemptError, EngineError) as error:
        text = str(error)
        return None if text.isprintable() else Violation(f"not one line: {text[:300]!r}")
    return None


def _stream(edits: tuple[Edit, ...]) -> None:
    collector = Collector()
    parts: Any = edited_tree(STREAM, edits)
    for part in parts if isinstance(parts, list) else [parts]:
        collector.add(_parsed(json.dumps(part)))
    collector.answer()


def _parsed(text: str) -> Any:
    """The document, or none where the client calls the answer malformed."""
    try:
        return parse(text)
    except (ValueError, RecursionError):
        return None


def _text(document: Any, edits: tuple[Edit, ...]) -> str:
    return as_text(document, edits).decode("utf-8", "replace")
