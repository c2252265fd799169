"""The interface of a grammar library: a vocabulary in bytes, a compiled grammar, a matcher of one request.

A library judges bytes only. Which tokens end an answer is the request's business (`engine.constraints.compiled`), so
both libraries get the same tokens and no end token.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.core.structured import ConstraintSpec
from engine.core.types import Mask

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class TokenSpelling:
    """The bytes of every token of a vocabulary; empty for a token that no text contains, such as an end token.

    `encode` turns text into tokens, for libraries that prefer the model's own way where only one text is left.
    """

    tokens: tuple[bytes, ...]
    encode: Encode = field(compare=False)

    @property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the spellings."""
        total = hashlib.sha256()
        for token in self.tokens:
            total.update(len(token).to_bytes(4, "big") + token)
        return total.hexdigest()[:16]


class Matcher(Protocol):
    """The state of one answer."""

    def accept(self, token: int) -> bool:
        """Go on by a token with a spelling; False, and no change, if the grammar forbids it."""

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens; at most as many as were accepted."""

    def mask(self) -> Mask:
        """[V] the tokens that `accept` takes; a new array. Entries without a spelling mean nothing."""

    def complete(self) -> bool:
        """The bytes so far are a whole answer; more may be possible."""


CompiledGrammar = Callable[[], Matcher]
"""A grammar compiled for a vocabulary: makes a matcher at the beginning of an answer, which shares nothing that changes
with others.
"""


class GrammarLibrary(Protocol):
    """A library of grammars for one vocabulary."""

    version: str

    def compile(self, spec: ConstraintSpec) -> CompiledGrammar:
        """Compile a grammar. Raises InvalidRequest: the grammar is wrong, or the library does not support it."""


def choice_in_lark(spec: ConstraintSpec) -> str:
    """A list of choices as a grammar."""
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in spec.value)
