"""The grammar that a request's answer must follow, as a frozen value of its sampling parameters.

Kinds are named as in vLLM's `StructuredOutputsParams`. The source is canonical text, so that equal grammars are equal
values and have one digest.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from engine.core.errors import InvalidRequest
from engine.core.structural_tag import TagGrammar, read_tags

DEFAULT_LIBRARY: Final = "llguidance"
LIBRARY: Final = "library"
"""The key of the library beside the grammar's own."""


class ConstraintKind(StrEnum):
    """The language in which a grammar is written."""

    JSON = "json"
    """A JSON Schema."""
    REGEX = "regex"
    CHOICE = "choice"
    """A list of texts, of which the answer is one."""
    GRAMMAR = "grammar"
    """Lark."""
    STRUCTURAL_TAG = "structural_tag"
    """Texts that begin a JSON value (`engine.core.structural_tag`)."""
    CASE = "case"
    """That of each case; a request never has it."""


WRITTEN_AS_JSON: Final = (ConstraintKind.JSON, ConstraintKind.CHOICE, ConstraintKind.STRUCTURAL_TAG)


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """One grammar, and the library that computes its masks.

    source: the schema, the structural tag or the list of choices as canonical JSON; the expression or the grammar as it
        was written.
    """

    kind: ConstraintKind
    source: str
    library: str = DEFAULT_LIBRARY

    @property
    def value(self) -> Any:
        """The source as it stands in a suite."""
        return json.loads(self.source) if self.kind in WRITTEN_AS_JSON else self.source

    def document(self) -> dict[str, Any]:
        """The form that a suite's key `structured` has; `constraint_of` reads it. With the library alone each case has
        its own grammar.
        """
        library = {LIBRARY: self.library}
        return library if self.kind is ConstraintKind.CASE else {self.kind.value: self.value, **library}


def constraint_of(document: Mapping[str, Any], library: str = DEFAULT_LIBRARY) -> ConstraintSpec:
    """The value of a suite's key `structured`; `library` is used where the document names none.

    Raises:
        InvalidRequest: not exactly one grammar, or a grammar of the wrong type.
    """
    given = [kind for kind in ConstraintKind if kind.value in document and kind is not ConstraintKind.CASE]
    if not given and set(document) == {LIBRARY}:
        return ConstraintSpec(ConstraintKind.CASE, "", str(document[LIBRARY]))
    if len(given) != 1:
        count = f"has both {given[0]} and {given[1]}" if given else "has no grammar"
        raise InvalidRequest(f"structured {count}; write one of json, regex, choice, grammar and structural_tag")
    kind, value = given[0], document[given[0].value]
    chosen = str(document.get(LIBRARY, library))
    if kind is ConstraintKind.JSON:
        if not isinstance(value, Mapping | bool):
            raise InvalidRequest("structured json is no JSON Schema; write an object")
        # the order of the keys stays: it is the order of the properties in the answer
        return ConstraintSpec(kind, json.dumps(value, ensure_ascii=False), chosen)
    if kind is ConstraintKind.STRUCTURAL_TAG:
        return tag_spec(read_tags(value), chosen)
    if kind is ConstraintKind.CHOICE:
        texts = list(value) if isinstance(value, list | tuple) else []
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise InvalidRequest("structured choice is no list of texts; write at least one, and no empty one")
        return ConstraintSpec(kind, json.dumps(texts, ensure_ascii=False), chosen)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"structured {kind} is no text; write the {kind} as a string")
    return ConstraintSpec(kind, value, chosen)


def tag_spec(grammar: TagGrammar, library: str = DEFAULT_LIBRARY) -> ConstraintSpec:
    """A structural tag as a grammar."""
    return ConstraintSpec(ConstraintKind.STRUCTURAL_TAG, json.dumps(grammar.document(), ensure_ascii=False), library)


def schemas_of(spec: ConstraintSpec) -> tuple[Any, ...]:
    """The JSON Schemas in a grammar: of the whole answer, or of each tag."""
    if spec.kind is ConstraintKind.STRUCTURAL_TAG:
        return tuple(tag.schema for tag in read_tags(spec.value).tags)
    return (spec.value,) if spec.kind is ConstraintKind.JSON else ()
