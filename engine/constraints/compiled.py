"""The grammars of an engine: libraries opened at the first use, each grammar compiled once.

The mask of a grammar is a function of the generated tokens. Behind the function a matcher follows the prefix that was
asked last: it rolls back to the longest common prefix and accepts from there. Drafted tokens that were rejected are
undone by that rule alone, with no notice from the loop.
"""

import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from engine.constraints.interface import CompiledGrammar, GrammarLibrary, TokenSpelling
from engine.core.errors import InvalidRequest, NoTokenLeft
from engine.core.registry import GRAMMARS, resolve
from engine.core.sequences import agreeing
from engine.core.structured import ConstraintSpec
from engine.core.types import Mask, SamplingParams

EXTRA: Final = "structured"
BYTES: Final = TokenSpelling(tuple(bytes([byte]) for byte in range(256)), lambda text: list(text.encode()))
"""A vocabulary of single bytes."""
MOST_COMPILED: Final = 256
"""Grammars that stay compiled; the one that was used longest ago goes first."""
KEPT: Final = 64
"""Masks kept: those of a step's rows, which the draft and the target ask alike."""


class PrefixConstraint:
    """One request's masks.

    An end token is allowed exactly where the answer is whole, beside the tokens that go on with it. After an end token
    or a token that the grammar forbids only end tokens are allowed: no answer gets there.

    Args:
        grammar: the compiled grammar.
        spelling: the bytes of every token.
        ends: the tokens that end the answer, at least one.
    """

    def __init__(self, grammar: CompiledGrammar, spelling: TokenSpelling, ends: Sequence[int]) -> None:
        self._grammar = grammar
        self._matcher = grammar()
        self._ends = sorted(set(ends))
        self._text = np.array([bool(token) for token in spelling.tokens])
        self._text[self._ends] = False
        self._path: list[int] = []
        self._kept: dict[tuple[int, ...], Mask] = {}

    def __call__(self, generated: Sequence[int]) -> Mask:
        """[V] the tokens that may follow `generated`; read-only.

        Raises:
            NoTokenLeft: the grammar gave up there. Other prefixes are not touched by that.
        """
        key = tuple(generated)
        known = self._kept.get(key)
        if known is None:
            try:
                known = self._mask(key)
            except NoTokenLeft:
                # a matcher that gave up takes nothing back
                self._matcher, self._path = self._grammar(), []
                raise
            known.setflags(write=False)
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = known
        return known

    def _mask(self, generated: tuple[int, ...]) -> Mask:
        follows = self._follow(generated)
        mask: Mask = self._matcher.mask() & self._text if follows else np.zeros(len(self._text), dtype=np.bool_)
        mask[self._ends] = self._matcher.complete() if follows else True
        return mask

    def _follow(self, generated: tuple[int, ...]) -> bool:
        """Bring the matcher to a prefix; False if the grammar does not have it."""
        shared = agreeing(self._path, generated)
        if shared < len(self._path):
            self._matcher.rollback(len(self._path) - shared)
            del self._path[shared:]
        for token in generated[shared:]:
            if not self._text[token] or not self._matcher.accept(token):
                return False
            self._path.append(token)
        return True


def open_library(name: str, spelling: TokenSpelling) -> GrammarLibrary:
    """The library of a registered name, for a vocabulary.

    Raises:
        InvalidRequest: the name is not registered, or the library is not installed.
    """
    if name in GRAMMARS and importlib.util.find_spec(name) is None:
        raise InvalidRequest(f"structured needs the package {name}; pip install 'specaudit[{EXTRA}]'")
    opened: GrammarLibrary = resolve(GRAMMARS, name, "grammar library")(spelling)
    return opened


def check(spec: ConstraintSpec) -> None:
    """Compile a grammar for a vocabulary of bytes, before any model is loaded.

    Raises:
        InvalidRequest: as `Grammars.constraint`.
    """
    Grammars(lambda: BYTES, (0,)).constraint(SamplingParams(structured=spec))


@dataclass(slots=True)
class Grammars:
    """The grammars of one vocabulary.

    spell: the vocabulary's bytes, read at the first use.
    eos_ids: the model's end tokens.
    """

    spell: Callable[[], TokenSpelling]
    eos_ids: tuple[int, ...] = ()
    _spelling: TokenSpelling | None = None
    _digest: str = ""
    _libraries: dict[str, GrammarLibrary] = field(default_factory=dict)
    _compiled: dict[ConstraintSpec, CompiledGrammar] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def constraint(self, sampling: SamplingParams) -> PrefixConstraint | None:
        """A new constraint at the beginning of an answer; None without a grammar.

        Raises:
            InvalidRequest: the grammar is refused, its library is not installed, or no token begins or ends an answer.
        """
        spec = sampling.structured
        if spec is None:
            return None
        ends = self._ends(sampling)
        if not ends:
            raise InvalidRequest("structured needs an end token, and the model has none; name one in stop_token_ids")
        known = self._compiled.get(spec)
        grammar = known or self._library(spec.library).compile(spec)
        constraint = PrefixConstraint(grammar, self.spelling, ends)
        if known is None and not constraint(()).any():
            raise InvalidRequest(f"structured {spec.kind}: no token begins an answer; change the grammar")
        self._keep(spec, grammar)
        return constraint

    def _keep(self, spec: ConstraintSpec, grammar: CompiledGrammar) -> None:
        """Keep a grammar as the one that was used last. A server compiles in another thread than the loop's."""
        with self._lock:
            self._compiled.pop(spec, None)
            self._compiled[spec] = grammar
            while len(self._compiled) > MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]

    def facts(self, spec: ConstraintSpec) -> Mapping[str, Any]:
        """Component, version and vocabulary, as JSON."""
        library = self._library(spec.library)
        return {"library": spec.library, "version": library.version, "vocabulary": self._digest}

    @property
    def spelling(self) -> TokenSpelling:
        """The vocabulary's bytes."""
        if self._spelling is None:
            self._spelling = self.spell()
            self._digest = self._spelling.digest
        return self._spelling

    def _ends(self, sampling: SamplingParams) -> Sequence[int]:
        return (*self.eos_ids, *sampling.stop_token_ids)

    def _library(self, name: str) -> GrammarLibrary:
        if name not in self._libraries:
            self._libraries[name] = open_library(name, self.spelling)
        return self._libraries[name]
