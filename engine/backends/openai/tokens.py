"""Token ids of prompts and answers: by the target's own tokenizer, or characters where there is none.

Ids from the server are the engine's own. Without them this module tokenizes the text, which may give other tokens than
the generated ones; without a tokenizer the ids are Unicode code points. Every record states its kind of ids.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from engine.backends.interface import Prompt
from engine.backends.openai.forms.token_lists import Piece
from engine.backends.openai.response import Completion
from engine.backends.second_decoding import SecondDecoding
from engine.core.types import FinishReason, Request

if TYPE_CHECKING:
    # an endpoint whose model is only served needs no torch
    from engine.backends.local_target import LocalTarget

CODE_POINTS: Final = 0x110000
SCALED: Final = "the server divides by the temperature before it takes log-probabilities, so they are of another law"


class TokenOrigin(StrEnum):
    """The origin of a record's token ids."""

    SERVER = "server"
    """The server sent the id of every generated token."""
    LOGPROBS = "log-probabilities"
    """The server sent ids with the log-probabilities."""
    TOKENIZER = "tokenizer"
    """The text, tokenized here."""
    CHARACTERS = "characters"
    """The text's code points."""


class Codec(Protocol):
    """The part of a tokenizer that records need."""

    @property
    def vocabulary(self) -> int:
        """Ids are below this."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """End tokens; empty if unknown."""

    @property
    def origin(self) -> TokenOrigin:
        """The kind of ids that `ids` returns."""

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """A prompt's ids, unique to the prompt."""

    def ids(self, text: str) -> tuple[int, ...]:
        """A text's ids."""

    def piece(self, token: int) -> str:
        """One id's text."""

    def decoded(self, prompt: Sequence[int], tokens: Sequence[int], *, special: bool) -> SecondDecoding | None:
        """The text of `tokens` after `prompt`, with `special` also its special tokens; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class LocalCodec:
    """The target's own tokenizer."""

    target: LocalTarget

    @property
    def vocabulary(self) -> int:
        """The target's."""
        return self.target.vocabulary

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The target's."""
        return self.target.eos_ids

    @property
    def origin(self) -> TokenOrigin:
        """Tokens of the text."""
        return TokenOrigin.TOKENIZER

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """By the chat template, unless it is raw text."""
        return self.target.encode(prompt)

    def ids(self, text: str) -> tuple[int, ...]:
        """The text's tokens, without those that begin a text."""
        return tuple(self.target.bare(text))

    def piece(self, token: int) -> str:
        """Empty for special tokens."""
        return self.target.tokens.decode([token])

    def decoded(self, prompt: Sequence[int], tokens: Sequence[int], *, special: bool) -> SecondDecoding | None:
        """By the target's tokenizer."""
        return self.target.decoded(prompt, tokens, special=special)


@dataclass(frozen=True, slots=True)
class CharacterCodec:
    """No tokenizer: characters."""

    vocabulary: int = CODE_POINTS
    eos_ids: tuple[int, ...] = ()
    origin: TokenOrigin = TokenOrigin.CHARACTERS

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt as it stands in the suite; chats as a JSON document."""
        if prompt.text is not None:
            return self.ids(prompt.text)
        document: dict[str, Any] = {
            "messages": list(prompt.messages),
            **({"tools": list(prompt.tools)} if prompt.tools else {}),
        }
        document |= {"template": dict(prompt.template)} if prompt.template else {}
        return self.ids(json.dumps(document, sort_keys=True, ensure_ascii=False))

    def ids(self, text: str) -> tuple[int, ...]:
        """Code points."""
        return tuple(map(ord, text))

    def piece(self, token: int) -> str:
        """The character."""
        return chr(token)

    def decoded(self, prompt: Sequence[int], tokens: Sequence[int], *, special: bool) -> None:
        """None: characters of a text show nothing about it."""
        del prompt, tokens, special


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """An answer's tokens. `logprob` and `lead` are empty, or one number per token; `less` states why they are empty."""

    tokens: tuple[int, ...]
    origin: TokenOrigin
    logprob: tuple[float, ...] = ()
    lead: tuple[float, ...] = ()
    less: str | None = None


def tokens_of(answer: Completion, codec: Codec, reason: FinishReason) -> AnswerTokens:
    """The answer's tokens from the best available source, with their log-probabilities if these belong to the same
    tokens.
    """
    pieces = answer.pieces
    if answer.token_ids is not None:
        return _scored(
            answer.token_ids, TokenOrigin.SERVER, pieces, "the server names tokens without log-probabilities"
        )
    if pieces and all(piece.id is not None for piece in pieces):
        ids = tuple(piece.id for piece in pieces if piece.id is not None)
        return _scored(ids, TokenOrigin.LOGPROBS, pieces, "")
    ids = codec.ids(answer.text)
    why = "without token ids the text was tokenized here, and the log-probabilities are of other tokens"
    if codec.origin is TokenOrigin.CHARACTERS or pieces is None:
        why = f"the server names no {'token ids' if pieces is not None else 'log-probabilities'}"
        return AnswerTokens(ids, codec.origin, less=why)
    return _scored(ids, codec.origin, _same(ids, pieces, codec, reason), why)


def _same(ids: Sequence[int], pieces: Sequence[Piece], codec: Codec, reason: FinishReason) -> tuple[Piece, ...] | None:
    """The pieces, if they are the text's tokens one by one; one more for the end is left out."""
    if len(pieces) == len(ids) + 1 and reason is FinishReason.EOS:
        pieces = pieces[:-1]
    equal = len(pieces) == len(ids) and all(
        codec.piece(token) == item.text for token, item in zip(ids, pieces, strict=True)
    )
    return tuple(pieces) if equal else None


def _scored(ids: tuple[int, ...], origin: TokenOrigin, pieces: Sequence[Piece] | None, why: str) -> AnswerTokens:
    if pieces is None or len(pieces) != len(ids) or any(math.isnan(piece.logprob) for piece in pieces):
        told = f"{len(pieces)} log-probabilities for {len(ids)} tokens" if pieces and len(pieces) != len(ids) else why
        return AnswerTokens(ids, origin, less=told or "a log-probability is missing")
    lead = tuple(piece.lead for piece in pieces)
    known = not any(math.isnan(item) for item in lead)
    return AnswerTokens(ids, origin, tuple(piece.logprob for piece in pieces), lead if known else ())


def finish_of(answer: Completion, request: Request, codec: Codec) -> FinishReason | None:
    """Our finish reason; None for an end that is not regular, such as a filter's."""
    sampling = request.sampling
    if answer.finish == "length":
        return FinishReason.LENGTH
    if answer.finish not in ("stop", "tool_calls", "function_call"):
        return None
    stopped = answer.stop_reason
    if answer.known_stop:
        # SGLang names the end token too, which nobody asked to stop at
        end = stopped in codec.eos_ids or not (codec.eos_ids or stopped in sampling.stop_token_ids)
        told = stopped is not None and not (isinstance(stopped, int) and end)
        return FinishReason.STOP if told else FinishReason.EOS
    last = answer.token_ids[-1] if answer.token_ids else None
    ended = last in codec.eos_ids or not (sampling.stop or sampling.stop_token_ids)
    return FinishReason.EOS if ended else FinishReason.STOP
