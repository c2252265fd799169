"""A second account of the masks of vLLM's grammars, from the output's tokens alone.

The grammar is compiled as vLLM compiles it, by the same library in the same version, for the same vocabulary and under
the same options; a fresh matcher then reads the tokens once, so that nothing is rolled back. It runs in the audit's
process and shares the library's faults. In a vLLM with another version of the library, or under an option that this
module does not follow, there is no second account, and the fact says why.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final, Protocol

import numpy as np

from engine.backends.vllm.public_api import CONFIG
from engine.backends.vllm.structured import LIBRARIES
from engine.constraints.interface import choice_in_lark
from engine.core.structured import ConstraintKind, ConstraintSpec
from engine.core.types import Mask, SamplingParams
from engine.record.facts import CONSTRAINT
from engine.record.mask_bits import unpacked
from engine.record.rows.row_digests import second_masks

UNREAD: Final = "unread"


class _Matcher(Protocol):
    def mask(self) -> Mask: ...

    def accept(self, token: int) -> bool: ...


Compile = Callable[[ConstraintSpec, Sequence[int]], _Matcher]
"""A grammar and the tokens that end an answer -> a matcher at its beginning."""


@dataclass(slots=True)
class SecondMasks:
    """Masks of one engine's grammars.

    tokenizer: the target's, as transformers loads it.
    vocabulary: the number of rows' entries.
    eos_ids: the target's end tokens.
    facts: of the running engine.
    """

    tokenizer: Any
    vocabulary: int
    eos_ids: tuple[int, ...]
    facts: Mapping[str, Any]
    _compilers: dict[str, Compile] = field(default_factory=dict)

    def account(self, sampling: SamplingParams, tokens: Sequence[int], text: str) -> dict[str, Any]:
        """The fact of one answer: digests of masks, the first token that they forbid, the text before an end token."""
        spec = sampling.structured
        if spec is None or not tokens:
            return {}
        known = {"library": spec.library, "version": self.facts["grammars"].get(spec.library)}
        reason = self._why_not(spec.library)
        if reason is not None:
            return {CONSTRAINT: {**known, UNREAD: reason}}
        ends = (*self.eos_ids, *sampling.stop_token_ids)
        return {CONSTRAINT: {**known, **second_masks(self._rows(spec, tokens, ends), tokens, ends), "text": text}}

    def _why_not(self, library: str) -> str | None:
        theirs = self.facts["grammars"].get(library)
        try:
            ours = metadata.version(library)
        except metadata.PackageNotFoundError:
            return f"{library} is not installed beside the audit, so no mask is computed again"
        if ours != theirs:
            return f"vLLM has {library} {theirs} and the audit {ours}, so no mask is computed again"
        settings = self.facts["settings"]["engine"]
        if settings.get(f"{CONFIG}.backend") != LIBRARIES[library]:
            return f"vLLM's grammar library is {settings.get(f'{CONFIG}.backend')}, not {library}"
        if settings.get(f"{CONFIG}.disable_additional_properties"):
            return f"masks under {CONFIG}.disable_additional_properties are not computed again"
        return None

    def _rows(self, spec: ConstraintSpec, tokens: Sequence[int], ends: Sequence[int]) -> Mask:
        """[E, V] the masks; after a token that the grammar refuses nothing is allowed."""
        compact = bool(self.facts["settings"]["engine"].get(f"{CONFIG}.disable_any_whitespace"))
        if spec.library not in self._compilers:
            make = _llguidance if spec.library == "llguidance" else _xgrammar
            self._compilers[spec.library] = make(self.tokenizer, self.vocabulary, compact)
        matcher = self._compilers[spec.library](spec, ends)
        rows = np.zeros((len(tokens), self.vocabulary), dtype=np.bool_)
        for at, token in enumerate(tokens):
            rows[at] = matcher.mask()
            if not matcher.accept(token):
                break
        return rows


@dataclass(frozen=True, slots=True)
class _LlguidanceMatcher:
    inner: Any
    vocabulary: int

    def mask(self) -> Mask:
        return unpacked(np.frombuffer(self.inner.compute_bitmask(), np.uint8), self.vocabulary)

    def accept(self, token: int) -> bool:
        return bool(self.inner.consume_token(token))


def _llguidance(tokenizer: Any, vocabulary: int, compact: bool) -> Compile:
    """As `vllm.v1.structured_output.backend_guidance`: only the tokenizer's own end token ends an answer."""
    import llguidance
    from llguidance.hf import from_tokenizer

    words = from_tokenizer(tokenizer, max(vocabulary, len(tokenizer)))

    def grammar(spec: ConstraintSpec) -> str:
        if spec.kind is ConstraintKind.JSON:
            flexible: Any = {"whitespace_flexible": not compact}
            return str(llguidance.LLMatcher.grammar_from_json_schema(spec.source, defaults=flexible))
        if spec.kind is ConstraintKind.CHOICE:
            return str(llguidance.LLMatcher.grammar_from_lark(choice_in_lark(spec)))
        return str(llguidance.grammar_from("regex" if spec.kind is ConstraintKind.REGEX else "grammar", spec.source))

    return lambda spec, _ends: _LlguidanceMatcher(llguidance.LLMatcher(words, grammar(spec), log_level=0), vocabulary)


@dataclass(frozen=True, slots=True)
class _XgrammarMatcher:
    inner: Any
    bits: Any
    vocabulary: int

    def mask(self) -> Mask:
        self.inner.fill_next_token_bitmask(self.bits)
        return unpacked(self.bits.numpy().view(np.uint8)[0], self.vocabulary)

    def accept(self, token: int) -> bool:
        return bool(self.inner.accept_token(token))


def _xgrammar(tokenizer: Any, vocabulary: int, compact: bool) -> Compile:
    """As `vllm.v1.structured_output.backend_xgrammar`: every end token of the request ends."""
    import xgrammar

    from engine.constraints.xgrammar import compiled_by

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    layout: dict[str, Any] = {"any_whitespace": not compact, "separators": (",", ":") if compact else None}
    compiled: dict[ConstraintSpec, Any] = {}

    def grammar(spec: ConstraintSpec) -> Any:
        if spec.kind is ConstraintKind.JSON:
            return compiler.compile_json_schema(spec.source, **layout)
        return compiled_by(compiler, spec)

    def matcher(spec: ConstraintSpec, ends: Sequence[int]) -> _Matcher:
        if spec not in compiled:
            compiled[spec] = grammar(spec)
        inner = xgrammar.GrammarMatcher(compiled[spec], override_stop_tokens=sorted(set(ends)) or None)
        return _XgrammarMatcher(inner, xgrammar.allocate_token_bitmask(1, vocabulary), vocabulary)

    return matcher
