"""Answers of SGLang's own route, `/generate`, as answers of OpenAI's.

A part of a stream holds the whole answer so far or, with `--incremental-streaming-output`, what is new; the number of
tokens in it tells which. The route names no model: the version of the weights stands where OpenAI has a fingerprint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.openai.errors import malformed
from engine.backends.openai.settings import Api, OpenAISettings

COUNTED: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
"""Counts in `meta_info` that are usage."""
ENTRY: Final = 3
"""Parts of a log-probability: value, token, text."""


def reader_of(settings: OpenAISettings) -> Callable[[Any], Any]:
    """A reader of the parts of one answer, in their order: each becomes a part in OpenAI's form."""
    return NativeReader().part if settings.api is Api.GENERATE else lambda document: document


@dataclass(slots=True)
class NativeReader:
    """Position in one answer: characters, tokens and log-probabilities of its earlier parts."""

    characters: int = 0
    tokens: int = 0
    scores: int = 0

    def part(self, document: Any) -> Any:
        """The new of a part. Raises AttemptError: a field has a wrong type."""
        if not isinstance(document, Mapping) or "meta_info" not in document:
            return document
        meta, text, ids = document["meta_info"], document.get("text") or "", document.get("output_ids")
        if not isinstance(meta, Mapping) or not isinstance(text, str) or not isinstance(ids, list | None):
            raise malformed("meta_info, text or output_ids has a wrong type")
        scores = _scores(meta)
        if self._new(len(ids or ()), meta.get("completion_tokens")):
            self.characters, self.tokens, self.scores = 0, self.tokens + len(ids or ()), 0
        else:
            self.tokens, ids = len(ids or ()), None if ids is None else ids[self.tokens :]
            text, self.characters = text[self.characters :], len(text)
            scores, self.scores = None if scores is None else scores[self.scores :], len(scores or ())
        choice = {"text": text, **_end(meta.get("finish_reason")), **({} if ids is None else {"token_ids": ids})}
        weights = meta.get("weight_version")
        return {
            "id": meta.get("id"),
            "system_fingerprint": None if weights is None else f"weights {weights}",
            "choices": [choice if scores is None else {**choice, "logprobs": {"content": scores}}],
            "usage": {key: meta[key] for key in COUNTED if key in meta},
            "prompt_token_ids": document.get("prompt_token_ids"),
            "sglext": {"spec_tokens_details": meta},
        }

    def _new(self, count: int, total: Any) -> bool:
        """True if `count` tokens of a part are new ones of an answer that has `total` by now."""
        return isinstance(total, int) and abs(self.tokens + count - total) < abs(count - total)


def _end(reason: Any) -> dict[str, Any]:
    """The end of an answer: its type, and the token or text that stopped it."""
    if not isinstance(reason, Mapping):
        return {"finish_reason": reason}
    return {"finish_reason": reason.get("type"), "stop_reason": reason.get("matched")}


def _scores(meta: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Log-probabilities as entries of OpenAI's chat, with ids; None without any."""
    if meta.get("output_token_logprobs") is None:
        return None
    own = _list(meta["output_token_logprobs"], "output_token_logprobs")
    tops = _list(meta.get("output_top_logprobs") or [None] * len(own), "output_top_logprobs")
    if len(tops) != len(own):
        raise malformed(f"output_token_logprobs has {len(own)} entries, output_top_logprobs {len(tops)}")
    return [
        {**_entry(entry), "top_logprobs": [_entry(rival) for rival in _list(top or [], "output_top_logprobs")]}
        for entry, top in zip(own, tops, strict=True)
    ]


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise malformed(f"{name} is no list")
    return value


def _entry(entry: Sequence[Any]) -> dict[str, Any]:
    if not isinstance(entry, list) or len(entry) != ENTRY:
        raise malformed("a log-probability is no list of value, token and text")
    value, token, text = entry
    return {"token": f"token_id:{token}" if text is None else text, "logprob": value, "id": token}
