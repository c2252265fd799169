"""Grammars by llguidance: JSON Schema, regular expressions, Lark, choice and structural tags.

The vocabulary gets one more token than the model has, as the library's end token; the caller decides on real ones.
Two habits of the library matter: a token that is refused, or one rolled back too many, leaves a matcher broken for
good, so tokens are validated first; and a schema with a keyword that it lacks is an error, never ignored.

Structural tags in Lark with lazy lexemes, as llguidance reads them.

Text beside tags is a lexeme that ends at the first trigger: from there on only a tag goes on.
"""

import json
from importlib.metadata import version
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from engine.constraints.interface import CompiledGrammar, TokenSpelling, choice_in_lark
from engine.core.errors import InvalidRequest, ModelError, NoTokenLeft
from engine.core.structured import ConstraintKind, ConstraintSpec, Tag, TagGrammar, read_tags
from engine.core.types import Mask


def tags_in_lark(grammar: TagGrammar) -> str:
    """A structural tag as a grammar of llguidance."""
    bare = " | ".join(f"tag_{number}" for number in range(len(grammar.tags)))
    lines = [f"bare: {bare}", *(f"tag_{number}: {_tag(tag)}" for number, tag in enumerate(grammar.tags))]
    if grammar.triggers is None:
        return "\n".join([f"start: {_separated(grammar)}", *lines])
    after = " | ".join(f"after_{number}" for number in range(len(grammar.tags)))
    lines += [f"later: {after}", "text: TEXT", "TEXT: /(.|\\n)*/"]
    for number, tag in enumerate(grammar.tags):
        trigger = next(text for text in grammar.triggers if tag.begin.startswith(text))
        lines.append(f"trigger_{number}[lazy]: TEXT {_text(trigger)}")
        lines.append(f"after_{number}: trigger_{number} {_tag(tag, len(trigger))}")
    return "\n".join(["%llguidance {}", f"start: {_triggered(grammar)}", *lines])


def _separated(grammar: TagGrammar) -> str:
    between = f"{_text(grammar.separator)} " if grammar.separator else ""
    tags = "bare" if grammar.stop_after_first else f"bare ({between}bare)*"
    return tags if grammar.at_least_one else f"({tags})?"


def _triggered(grammar: TagGrammar) -> str:
    if grammar.stop_after_first:
        return "bare" if grammar.at_least_one else "later | text"
    return "bare later* text" if grammar.at_least_one else "later* text"


def _tag(tag: Tag, skipped: int = 0) -> str:
    """The rule of a tag, without the first characters of its beginning."""
    begin = f"{_text(tag.begin[skipped:])} " if tag.begin[skipped:] else ""
    return f"{begin}%json {json.dumps(tag.schema, ensure_ascii=False)} {_text(tag.end)}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class _Wrapped:
    """The attributes that the library reads from a tokenizer."""

    def __init__(self, spelling: TokenSpelling) -> None:
        end = len(spelling.tokens)
        self.tokens = [token or f"<|{number}|>".encode() for number, token in enumerate(spelling.tokens)] + [b"<|end|>"]
        self.special_token_ids = [*(number for number, token in enumerate(spelling.tokens) if not token), end]
        self.eos_token_id, self.bos_token_id = end, None
        self._spelling = spelling
        self._known = {text: number for number, text in enumerate(spelling.tokens) if text}

    def __call__(self, text: str | bytes) -> list[int]:
        """The model's own tokens of a text, or the longest ones where its own spell another text, as under NFKC.

        The library believes what it gets. A text that no tokens spell gets the end token, which fits nowhere.
        """
        # the library asks with bytes first, and falls back to text
        wanted = text.encode() if isinstance(text, str) else text
        tokens = self._spelling.encode(wanted.decode("utf-8"))
        if b"".join(self._spelling.tokens[token] for token in tokens) == wanted:
            return tokens
        return self._longest(wanted)

    def _longest(self, text: bytes) -> list[int]:
        tokens, at = [], 0
        while at < len(text):
            piece = next((text[at:end] for end in range(len(text), at, -1) if text[at:end] in self._known), b"")
            if not piece:
                return [self.eos_token_id]
            tokens.append(self._known[piece])
            at += len(piece)
        return tokens


class _Matcher:
    def __init__(self, inner: LLMatcher, vocabulary: int) -> None:
        self._inner = inner
        self._vocabulary = vocabulary

    def accept(self, token: int) -> bool:
        """As the protocol."""
        return self._inner.validate_tokens([token]) == 1 and self._inner.consume_token(token)

    def rollback(self, count: int) -> None:
        """As the protocol."""
        if not self._inner.rollback(count):
            raise ModelError(f"llguidance cannot roll back {count} tokens: {self._inner.get_error()}")

    def mask(self) -> Mask:
        """As the protocol."""
        bits = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        if self._inner.is_error():
            raise NoTokenLeft(
                f"structured: llguidance gave up ({_line(self._inner.get_error())}); simplify the grammar"
            )
        return np.unpackbits(bits, count=self._vocabulary, bitorder="little").astype(np.bool_)

    def complete(self) -> bool:
        """As the protocol."""
        return self._inner.is_accepting()


class LlguidanceLibrary:
    """llguidance for one vocabulary."""

    def __init__(self, spelling: TokenSpelling) -> None:
        self.version = version("llguidance")
        self._vocabulary = len(spelling.tokens)
        wrapper: Any = TokenizerWrapper(_Wrapped(spelling))
        self._tokenizer = LLTokenizer(wrapper, n_vocab=self._vocabulary + 1, eos_token=self._vocabulary)

    def compile(self, spec: ConstraintSpec) -> CompiledGrammar:
        """As the protocol."""
        grammar = _grammar(spec)
        wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, self._tokenizer)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if wrong or matcher.is_error():
            reason = _line(matcher.get_error() or " ".join(messages))
            raise InvalidRequest(f"structured {spec.kind}: llguidance refuses it ({reason}); change that part")
        return lambda: _Matcher(matcher.deep_copy(), self._vocabulary)


def _grammar(spec: ConstraintSpec) -> str:
    if spec.kind is ConstraintKind.JSON:
        return LLMatcher.grammar_from_json_schema(spec.source)
    if spec.kind is ConstraintKind.REGEX:
        return LLMatcher.grammar_from_regex(spec.source)
    if spec.kind is ConstraintKind.CHOICE:
        return LLMatcher.grammar_from_lark(choice_in_lark(spec))
    if spec.kind is ConstraintKind.STRUCTURAL_TAG:
        return LLMatcher.grammar_from_lark(tags_in_lark(read_tags(spec.value)))
    return LLMatcher.grammar_from_lark(spec.source)


def _line(message: str) -> str:
    """A message of several lines as one."""
    return " ".join(message.split())[:200]
