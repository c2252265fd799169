"""An answer's text against its tokens, as far as the server names them.

With token ids and the target's own tokenizer, the ids are decoded a second time, and of a streamed answer also the ids
up to each chunk; else the texts or bytes that the server gives beside the log-probabilities are joined. Text that a
server's parsers moved into calls, reasoning or a refusal is not compared: no tokens decode to it as one text. Cannot
see: a special token that the text lacks, if the server names tokens by their texts alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.openai.forms.token_lists import NAMED, Piece
from engine.backends.openai.response import Completion
from engine.backends.openai.settings import OpenAISettings
from engine.backends.openai.tokens import AnswerTokens, Codec, TokenOrigin
from engine.backends.second_decoding import NO_DECODING, SecondDecoding, undecoded
from engine.core.types import Request
from engine.stream.holding import INCOMPLETE

SPECIAL: Final = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]")
"""The usual spellings of special tokens, which texts leave out."""
NAMELESS: Final = "the answer names neither token ids that the target's tokenizer decodes nor the texts of its tokens"
MOST_CHUNKS: Final = 256
"""Chunks of one answer that are compared, evenly spread: each takes another decoding."""
BLANKS: Final = "the server was asked to leave out blanks between special tokens"


@dataclass(frozen=True, slots=True)
class TextRules:
    """How the server makes a text of tokens: vLLM's parameters, in `body` of the suite; the defaults elsewhere too.

    special: special tokens are in the text.
    stop_shown: so are the stop string or the token that ended it.
    end_cut: else such a token is never in the text. Servers other than vLLM do not document it and may do either.
    open: reason why the rules are not known here.
    """

    special: bool = False
    stop_shown: bool = False
    end_cut: bool = True
    open: str | None = None


def rules_of(settings: OpenAISettings) -> TextRules:
    """The rules of the server, as the suite's own keys of a request change them."""
    body = settings.body
    special = body.get("skip_special_tokens") is False
    tight = special and body.get("spaces_between_special_tokens") is False
    shown = bool(body.get("include_stop_str_in_output"))
    return TextRules(special, shown, settings.server == "vllm", BLANKS if tight else None)


@dataclass(frozen=True, slots=True)
class TextSource:
    """One answer with everything that its text comes from; `streamed` is the second answer if both ways were asked."""

    request: Request
    answer: Completion
    streamed: Completion | None
    read: AnswerTokens
    codec: Codec
    rules: TextRules

    def decoded(self, tokens: Sequence[int]) -> SecondDecoding | None:
        """The text of the first tokens of the answer."""
        prompt = self.answer.prompt_ids or self.request.prompt
        return self.codec.decoded(prompt, tokens, special=self.rules.special)


def decoded_facts(source: TextSource) -> dict[str, Any]:
    """The facts of a request that check `text` reads."""
    answer, rules = source.answer, source.rules
    parts = [name for name in ("reasoning", "refusal", "tool_calls") if getattr(answer, name)]
    if parts:
        return {"parts": parts}
    if rules.open is not None:
        return undecoded(rules.open)
    named = source.read.origin in (TokenOrigin.SERVER, TokenOrigin.LOGPROBS)
    if named and source.codec.origin is TokenOrigin.TOKENIZER:
        return _by_ids(source)
    if not answer.pieces or any(NAMED.fullmatch(piece.text) or _cut(piece) for piece in answer.pieces):
        return undecoded(NAMELESS)
    # the server's own names of the tokens, joined
    text = b"".join(_named(answer.pieces, answer.content.encode())).decode(errors="replace")
    stops = source.request.sampling.stop_token_ids
    last = len(answer.pieces[-1].text) if stops and answer.finish == "stop" and not rules.stop_shown else 0
    return _facts(SecondDecoding(text, last), rules, {"joined": True})


def _cut(piece: Piece) -> bool:
    """True if a token holds a part of a character and the server does not give its bytes, or those of the mark."""
    return INCOMPLETE in piece.text and piece.raw in (None, piece.text.encode())


def _by_ids(source: TextSource) -> dict[str, Any]:
    tokens, rules = source.read.tokens, source.rules
    text = source.decoded(tokens)
    before = source.decoded(tokens[:-1]) if _ended_by_token(source) and not rules.stop_shown else text
    if text is None or before is None:
        return undecoded(NO_DECODING)
    if rules.end_cut:
        text = before
    elif before is not text:
        text = SecondDecoding(text.text, len(text.text) - len(before.text))
    ahead = list(_ahead(source))
    return _facts(text, rules, {"ahead": ahead} if ahead else {})


def _ended_by_token(source: TextSource) -> bool:
    """True if the last token, not a stop string, ended the answer."""
    answer, tokens, codec = source.answer, source.read.tokens, source.codec
    if answer.finish == "length" or not tokens:
        return False
    if answer.known_stop:
        return not isinstance(answer.stop_reason, str)
    return tokens[-1] in (*codec.eos_ids, *source.request.sampling.stop_token_ids)


def _ahead(source: TextSource) -> Iterator[int]:
    """Numbers of the chunks up to which the text is not the beginning of what the ids so far decode to.

    The text may lag behind: a server holds back what may become a stop string, and incomplete characters.
    """
    parts = source.streamed or source.answer
    step = 1 + len(parts.chunks) // MOST_CHUNKS
    for at, chunk in list(enumerate(parts.chunks))[::step]:
        so_far = source.decoded((parts.token_ids or ())[: chunk.tokens])
        if so_far is not None and not so_far.text.startswith(parts.content[: chunk.characters]):
            yield at


def _named(pieces: Sequence[Piece], text: bytes) -> Iterator[bytes]:
    """The bytes of every piece, without special tokens that the text does not have there."""
    at = 0
    for piece in pieces:
        raw = piece.text.encode() if piece.raw is None else piece.raw
        if text.startswith(raw, at):
            at += len(raw)
        elif SPECIAL.fullmatch(piece.text):
            continue
        yield raw


def _facts(result: SecondDecoding, rules: TextRules, more: Mapping[str, Any]) -> dict[str, Any]:
    facts = result.facts()
    shown = {"stop_shown": True} if rules.stop_shown else {}
    decoding = {**facts.get("decoding", {}), **shown, **more}
    return {**facts, **({"decoding": decoding} if decoding else {})}
