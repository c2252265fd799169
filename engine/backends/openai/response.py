"""A server's answer, parsed strictly from one document or from the parts of a stream.

Both ways give the same `Answer` of the same generation. A field of a wrong type
makes the answer malformed; an absent field reduces its content.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from engine.backends.openai.documents import brief
from engine.backends.openai.errors import AttemptError, FailureKind, malformed
from engine.backends.openai.forms.draft_counts import draft_counts, iterations
from engine.backends.openai.forms.token_lists import ListedToken, Piece, Rival, pieces_of
from engine.backends.openai.secret import Secret

NO_NUMBER: Final = -9999.0
"""Written by servers for a log-probability that they do not have."""
META: Final = ("id", "model", "system_fingerprint", "provider", "service_tier", "created")


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """How far a streamed answer was after one of its chunks: characters of content, and token ids."""

    characters: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the server read out of the text; `arguments` as the server gives them, parsed by no one."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice of one answer.

    stop_reason: the cause of the stop, if the server distinguishes causes; `known_stop` is true if it does.
    token_ids, prompt_ids: None if the server does not send them.
    chunks: of a streamed answer whose chunks name their token ids.
    """

    content: str
    finish: str
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: int | str | None = None
    known_stop: bool = False
    token_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    pieces: tuple[Piece, ...] | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    speculation: Mapping[str, Any] | None = None
    chunks: tuple[StreamChunk, ...] = field(default=(), compare=False)

    @property
    def text(self) -> str:
        """The whole answer: the content, or a JSON document if there is more than content."""
        told: dict[str, Any] = {"reasoning": self.reasoning, "refusal": self.refusal}
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.tool_calls]
        more = {key: value for key, value in {**told, "tool_calls": calls}.items() if value}
        return self.content if not more else json.dumps({"content": self.content, **more}, ensure_ascii=False)


@dataclass(slots=True)
class Collector:
    """Assembles an answer from parts; a whole document is one part. `rivals` is the requested length of its lists."""

    rivals: int = 0
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    listed: list[ListedToken] = field(default_factory=list)
    names: dict[int, list[str]] = field(default_factory=dict)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    token_ids: list[int] | None = None
    prompt_ids: tuple[int, ...] | None = None
    finish: str | None = None
    stop_reason: int | str | None = None
    known_stop: bool = False
    scored: bool = False
    usage: Mapping[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    speculation: Mapping[str, Any] | None = None
    chunks: list[StreamChunk] = field(default_factory=list)
    parts: int = 0
    ended: Mapping[str, Any] = field(default_factory=dict)

    def add(self, document: Any) -> bool:
        """Add one part; returns true if it contains text.

        Raises:
            AttemptError: the part does not belong to an answer.
        """
        whole = _mapping(document, "the answer")
        if whole.get("error"):
            raise AttemptError(
                FailureKind.HTTP, f"the server answers with an error: {str(whole['error'])[:200]}", again=True
            )
        self.parts += 1
        self.meta |= {key: brief(whole[key]) for key in META if whole.get(key) is not None}
        self.usage = _mapping(whole.get("usage") or self.usage, "usage")
        self.speculation = draft_counts(whole) or self.speculation
        self.prompt_ids = _ids(whole.get("prompt_token_ids"), "prompt_token_ids") or self.prompt_ids
        choices = _list(whole.get("choices", ()), "choices")
        if len(choices) > 1:
            raise malformed(f"the answer has {len(choices)} choices, one was requested")
        return bool(choices) and self._choice(_mapping(choices[0], "the choice"))

    def _choice(self, choice: Mapping[str, Any]) -> bool:
        self.prompt_ids = _ids(choice.get("prompt_token_ids"), "prompt_token_ids") or self.prompt_ids
        ids = _ids(choice.get("token_ids"), "token_ids")
        if ids is not None:
            self.token_ids = [*(self.token_ids or ()), *ids]
        if choice.get("finish_reason") is not None:
            self.finish = _text(choice["finish_reason"], "finish_reason")
            # SGLang has another name for it
            key = "matched_stop" if "matched_stop" in choice else "stop_reason"
            self.stop_reason, self.known_stop = choice.get(key), key in choice
            self.ended = choice
        if choice.get("logprobs"):
            self.scored = True
            self.listed.extend(_listed(_mapping(choice["logprobs"], "logprobs")))
        said = choice.get("message", choice.get("delta"))
        count = len(self.content)
        message = _mapping(said if said is not None else {"content": choice.get("text")}, "the message")
        told = self._said(message, whole="message" in choice)
        if self.token_ids is not None:
            before = self.chunks[-1].characters if self.chunks else 0
            self.chunks.append(StreamChunk(before + sum(map(len, self.content[count:])), len(self.token_ids)))
        return told

    def _said(self, message: Mapping[str, Any], *, whole: bool) -> bool:
        told = False
        reasoning = "reasoning" if message.get("reasoning") else "reasoning_content"
        for key, into in (("content", self.content), (reasoning, self.reasoning), ("refusal", self.refusal)):
            if message.get(key):
                into.append(_text(message[key], key))
                told = True
        for place, call in enumerate(_list(message.get("tool_calls") or (), "tool_calls")):
            self._call(place if whole else None, _mapping(call, "the tool call"))
            told = True
        return told

    def _call(self, place: int | None, call: Mapping[str, Any]) -> None:
        """A call or, without its place, a part of one; parts of one call have the same index."""
        index = place if call.get("index") is None else call["index"]
        function = _mapping(call.get("function") or {}, "function")
        if index is None:
            raise malformed("a part of a tool call has no index")
        if not _whole(index):
            raise malformed("the index of a tool call is no number")
        for key, into in (("name", self.names), ("arguments", self.arguments)):
            into.setdefault(index, [])
            if function.get(key):
                into[index].append(_text(function[key], key))

    def answer(self) -> Completion:
        """The answer. Raises AttemptError: the answer has no end."""
        if self.finish is None:
            raise malformed("the answer has no finish reason" if self.parts else "the answer is empty")
        calls = (ToolCall("".join(self.names[at]), "".join(self.arguments[at])) for at in sorted(self.names))
        return Completion(
            content="".join(self.content),
            finish=self.finish,
            reasoning="".join(self.reasoning),
            refusal="".join(self.refusal),
            tool_calls=tuple(calls),
            stop_reason=self.stop_reason,
            known_stop=self.known_stop,
            token_ids=None if self.token_ids is None else tuple(self.token_ids),
            prompt_ids=self.prompt_ids,
            pieces=pieces_of(self.listed, self.rivals) if self.scored else None,
            usage=dict(self.usage),
            meta=dict(self.meta),
            speculation=self.speculation or iterations(self.ended, self.usage),
            chunks=tuple(self.chunks) if len(self.chunks) > 1 else (),
        )


def read(document: Any, rivals: int = 0) -> Completion:
    """The answer in one document; `rivals` as in `Collector`. Raises AttemptError: the document is not an answer."""
    collector = Collector(rivals)
    collector.add(document)
    return collector.answer()


def _listed(logprobs: Mapping[str, Any]) -> list[ListedToken]:
    """Tokens with log-probabilities: chat's list of entries, or the parallel lists of the older route."""
    if logprobs.get("content") is not None:
        return [_entry(_mapping(item, "logprobs")) for item in _list(logprobs["content"], "logprobs")]
    if "tokens" not in logprobs:
        return []
    texts, values = _list(logprobs["tokens"], "tokens"), _list(logprobs.get("token_logprobs"), "token_logprobs")
    tops = _list(logprobs.get("top_logprobs") or [None] * len(texts), "top_logprobs")
    if not len(texts) == len(values) == len(tops):
        raise malformed(f"logprobs has {len(texts)} tokens, {len(values)} numbers and {len(tops)} lists")
    result = []
    for text, value, top in zip(texts, values, tops, strict=True):
        rivals = [Rival(str(key), _number(item)) for key, item in _mapping(top or {}, "top_logprobs").items()]
        result.append(ListedToken(_text(text, "tokens"), _own(value), rivals, keyed=True))
    return result


def _entry(entry: Mapping[str, Any]) -> ListedToken:
    tops = _list(entry.get("top_logprobs") or (), "top_logprobs")
    listed = [_mapping(top, "top_logprobs") for top in tops]
    rivals = [Rival(str(top.get("token")), _number(top.get("logprob"))) for top in listed]
    text, own = _text(entry.get("token"), "token"), entry.get("id")
    return ListedToken(
        text, _own(entry.get("logprob")), rivals, own if _whole(own) else None, raw=_bytes(entry.get("bytes"))
    )


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise malformed(f"{name} is no JSON object")
    return value


def _list(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise malformed(f"{name} is no list")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise malformed(f"{name} is no text")
    return value


def _number(value: Any) -> float:
    """A log-probability; NaN where the server gives none."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise malformed("a log-probability is no number")
    return float(value)


def _own(value: Any) -> float:
    """A token's own log-probability; NaN also where a number stands for none."""
    number = _number(value)
    return math.nan if number <= NO_NUMBER else number


def _bytes(value: Any) -> bytes | None:
    """A token's bytes; None where the server gives none."""
    if value is None:
        return None
    numbers = _list(value, "bytes")
    if not all(_whole(number) and number < 256 for number in numbers):
        raise malformed("bytes holds something that is no byte")
    return bytes(numbers)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _ids(value: Any, name: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    ids = tuple(_list(value, name))
    if not all(_whole(other) for other in ids):
        raise malformed(f"{name} holds something that is no token id")
    return ids


def without_key(answer: Completion, secret: Secret) -> Completion:
    """The answer without the key. One that holds it loses its tokens and log-probabilities, which spell it too."""
    if secret.pattern is None or not any(map(secret.within, _texts(answer))):
        return answer
    calls = tuple(ToolCall(secret.clean(call.name), secret.clean(call.arguments)) for call in answer.tool_calls)
    return replace(
        answer,
        content=secret.clean(answer.content),
        reasoning=secret.clean(answer.reasoning),
        refusal=secret.clean(answer.refusal),
        tool_calls=calls,
        stop_reason=secret.cleaned(answer.stop_reason),
        token_ids=None,
        pieces=None,
        chunks=(),
    )


def _texts(answer: Completion) -> Iterator[str]:
    """Texts of an answer: each whole, because parts of a stream and tokens may cut the key."""
    yield answer.content
    yield answer.reasoning
    yield answer.refusal
    yield str(answer.stop_reason)
    for call in answer.tool_calls:
        yield from (call.name, call.arguments)
    pieces = answer.pieces or ()
    yield "".join(piece.text for piece in pieces)
    yield b"".join(piece.raw or b"" for piece in pieces).decode("utf-8", "replace")
