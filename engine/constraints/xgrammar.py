"""Grammars by xgrammar: JSON Schema, regular expressions, Lark, choice and structural tags.

The vocabulary gets one more token than the model has, as the library's end token; the caller decides on real ones.
The library ignores some keywords of a schema, alone or beside others; these are refused here. In 0.2.8 strings with a
length limit allow raw control characters, which no JSON text may hold: check `schema_conformance` finds such outputs.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final

import numpy as np
import xgrammar

from engine.constraints.interface import CompiledGrammar, TokenSpelling, choice_in_lark
from engine.core.errors import InvalidRequest, ModelError
from engine.core.structured import ConstraintKind, ConstraintSpec, schemas_of
from engine.core.types import Mask

IGNORED: Final = frozenset(
    (
        *("contains", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains"),
        *("multipleOf", "not", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
    )
)
"""Keywords that the library does not enforce."""
VALUES: Final = frozenset(("const", "enum"))
TYPES: Final[Mapping[Any, tuple[type, ...]]] = {
    **{"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),)},
    **{"array": (list,), "object": (dict,)},
}
COMPOSERS: Final = VALUES | {"$ref", "allOf", "anyOf", "oneOf"}
"""Keywords beside which the library drops all others."""
UNASSERTED: Final = frozenset(
    (
        *("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description"),
        *("examples", "readOnly", "title", "writeOnly"),
    )
)
"""Keywords that no value can fail."""
TEXTS: Final = (("pattern",), ("format",), ("length", "minLength", "maxLength"))
"""Limits of a text, one of which the library enforces."""
UNTYPED: Final = frozenset(
    (
        *("exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength", "maxProperties", "maximum"),
        *("minItems", "minLength", "minProperties", "minimum", "pattern", "patternProperties", "propertyNames"),
    )
)
"""Keywords that the library drops where no type is stated."""
SUBSCHEMAS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keywords whose keys are names, not keywords."""


class _Matcher:
    def __init__(self, inner: xgrammar.GrammarMatcher, vocabulary: int) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._bits = xgrammar.allocate_token_bitmask(1, vocabulary + 1)

    def accept(self, token: int) -> bool:
        """As the protocol."""
        return bool(self._inner.accept_token(token))

    def rollback(self, count: int) -> None:
        """As the protocol."""
        try:
            self._inner.rollback(count)
        except RuntimeError as error:
            raise ModelError(f"xgrammar cannot roll back {count} tokens: {error}") from error

    def mask(self) -> Mask:
        """As the protocol."""
        self._inner.fill_next_token_bitmask(self._bits)
        bits = self._bits.numpy().view(np.uint8)[0]
        return np.unpackbits(bits, count=self._vocabulary, bitorder="little").astype(np.bool_)

    def complete(self) -> bool:
        """As the protocol."""
        return bool(self._inner.is_completed())


class XgrammarLibrary:
    """xgrammar for one vocabulary."""

    def __init__(self, spelling: TokenSpelling) -> None:
        self.version = version("xgrammar")
        end = len(spelling.tokens)
        info = xgrammar.TokenizerInfo(
            [*spelling.tokens, b"<|end|>"], vocab_type=xgrammar.VocabType.RAW, vocab_size=end + 1, stop_token_ids=[end]
        )
        self._vocabulary = end
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def compile(self, spec: ConstraintSpec) -> CompiledGrammar:
        """As the protocol."""
        ignored = next((key for schema in schemas_of(spec) for key in _ignored(schema)), None)
        if ignored is not None:
            raise InvalidRequest(
                f"structured {spec.kind}: xgrammar does not enforce {ignored}; remove it or use library llguidance"
            )
        try:
            compiled = compiled_by(self._compiler, spec)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InvalidRequest(
                f"structured {spec.kind}: xgrammar refuses it ({reason}); change or remove that part"
            ) from error
        return lambda: _Matcher(xgrammar.GrammarMatcher(compiled), self._vocabulary)


def compiled_by(compiler: xgrammar.GrammarCompiler, spec: ConstraintSpec) -> xgrammar.CompiledGrammar:
    """A grammar compiled under the library's defaults."""
    if spec.kind is ConstraintKind.JSON:
        return compiler.compile_json_schema(spec.source)
    if spec.kind is ConstraintKind.REGEX:
        return compiler.compile_regex(spec.source)
    if spec.kind is ConstraintKind.CHOICE:
        return compiler.compile_lark(choice_in_lark(spec))
    if spec.kind is ConstraintKind.STRUCTURAL_TAG:
        return compiler.compile_structural_tag(spec.source)
    return compiler.compile_lark(spec.source)


def _ignored(schema: Any, names: bool = False) -> Iterator[str]:
    """The ignored parts of a schema; with `names` its keys are names of properties or definitions."""
    if isinstance(schema, list):
        for part in schema:
            yield from _ignored(part)
    elif isinstance(schema, dict):
        if not names:
            yield from _of_one(schema)
        for key, part in schema.items():
            if names or key not in ("const", "default", "enum", "examples"):
                yield from _ignored(part, not names and key in SUBSCHEMAS)


def _of_one(schema: dict[str, Any]) -> Iterator[str]:
    """The keywords of one schema that the library drops, alone or beside others."""
    yield from sorted(IGNORED & schema.keys())
    asserted = schema.keys() - UNASSERTED
    for key in sorted(COMPOSERS & asserted):
        beside = sorted(asserted - {key})
        if beside and not (key in VALUES and beside == ["type"] and _of_types(schema, key)):
            yield f"{beside[0]} beside {key}"
    if len(schema.get("allOf", ())) > 1:
        yield "more than one schema in allOf"
    if not _disjoint(schema.get("oneOf", ())):
        yield "oneOf of schemas that one value may meet together"
    texts = [words[0] for words in TEXTS if asserted.intersection(words)]
    if len(texts) > 1:
        yield f"{texts[1]} beside {texts[0]}"
    if "type" not in schema and asserted & UNTYPED:
        yield f"{min(asserted & UNTYPED)} without a type"
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in properties:
            yield f"required of {name}, which is not among its properties"


def _of_types(schema: dict[str, Any], key: str) -> bool:
    """True if each listed value has one of a schema's types, so that nothing is lost."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kinds = {kind for name in types for kind in TYPES.get(name, ())}
    return all(type(value) in kinds for value in ([schema[key]] if key == "const" else schema[key]))


def _disjoint(branches: Any) -> bool:
    """True if branches have types of their own, or constants of one required property."""
    parts = [part for part in branches if isinstance(part, dict)]
    types = ["number" if part.get("type") == "integer" else part.get("type") for part in parts]
    if all(isinstance(name, str) for name in types) and len({*types}) == len(branches):
        return True
    shared = set.intersection(*(set(part.get("required", ())) for part in parts)) if parts else set()
    for name in shared:
        constants = [part.get("properties", {}).get(name, {}).get("const") for part in parts]
        if all(isinstance(value, str | int) for value in constants) and len({*constants}) == len(branches):
            return True
    return not branches
