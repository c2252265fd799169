"""The grammar that a request's answer must follow, as a frozen value of its sampling parameters.

Kinds are named as in vLLM's `StructuredOutputsParams`. The source is canonical text, so that equal grammars are equal
values and have one digest.

Structural tags are answers in which certain texts begin a JSON value, such as a tool call. The document is the one that
xgrammar and vLLM take, in two of its formats, with a JSON Schema in every tag: `triggered_tags` lets text stand beside
the tags, `tags_with_separator` does not. vLLM's older form, `structures` and `triggers`, is read as `triggered_tags`. A
tag is `begin`, the value, `end`, with nothing between them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from engine.core.errors import InvalidRequest

DEFAULT_LIBRARY: Final = "llguidance"
LIBRARY: Final = "library"
"""The key of the library beside the grammar's own."""
TYPE: Final = "structural_tag"
TRIGGERED: Final = "triggered_tags"
SEPARATED: Final = "tags_with_separator"
FLAGS: Final = ("at_least_one", "stop_after_first")
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    TRIGGERED: ("type", "triggers", "tags", *FLAGS),
    SEPARATED: ("type", "separator", "tags", *FLAGS),
}
"""The keys of each format."""


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag; `schema` is a JSON Schema."""

    begin: str
    schema: Any
    end: str


@dataclass(frozen=True, slots=True)
class TagGrammar:
    """A structural tag.

    triggers: the texts that begin a tag, wherever they stand; None if nothing stands beside the tags. separator: the
    text between two tags if nothing else stands beside them; may be empty. at_least_one: the answer has a tag. With
    triggers it begins with one, as in xgrammar. stop_after_first: the answer ends with its first tag.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...] | None = None
    separator: str = ""
    at_least_one: bool = False
    stop_after_first: bool = False

    def document(self) -> dict[str, Any]:
        """The form that xgrammar takes; `read_tags` reads it."""
        kind: dict[str, Any] = {"type": SEPARATED, "separator": self.separator}
        if self.triggers is not None:
            kind = {"type": TRIGGERED, "triggers": list(self.triggers)}
        tags = [
            {
                "type": "tag",
                "begin": tag.begin,
                "content": {"type": "json_schema", "json_schema": tag.schema},
                "end": tag.end,
            }
            for tag in self.tags
        ]
        flags = {"at_least_one": self.at_least_one, "stop_after_first": self.stop_after_first}
        return {"type": TYPE, "format": {**kind, "tags": tags, **flags}}


def read_tags(document: Any) -> TagGrammar:
    """A structural tag in either form.

    Raises:
        InvalidRequest: another form or format, or a tag that does not begin with exactly one trigger.
    """
    _require(isinstance(document, Mapping), "is no object; write format, or structures and triggers")
    if "structures" in document:
        _only(document, ("type", "structures", "triggers"), "the form with structures")
        tags = _list(document, "structures")
        grammar = TagGrammar(tuple(_old_tag(tag) for tag in tags), _texts(document, "triggers"))
    else:
        _only(document, ("type", "format"), "the document")
        _require(isinstance(document.get("format"), Mapping), "has no format; write one")
        grammar = _format(document["format"])
    _require(document.get("type", TYPE) == TYPE, f"has another type; write {TYPE}")
    for tag in grammar.tags if grammar.triggers is not None else ():
        count = sum(tag.begin.startswith(trigger) for trigger in grammar.triggers or ())
        _require(count == 1, f"has a tag {tag.begin!r} that begins with {count} of the triggers; it needs exactly one")
    return grammar


def _format(entry: Mapping[str, Any]) -> TagGrammar:
    kind = entry.get("type")
    _require(kind in KEYS, f"has the format {kind!r}; write {TRIGGERED} or {SEPARATED}")
    _only(entry, KEYS[str(kind)], str(kind))
    flags = {name: entry.get(name, False) for name in FLAGS}
    _require(all(isinstance(flag, bool) for flag in flags.values()), f"has flags that are not true or false: {flags}")
    separator = entry.get("separator", "")
    _require(isinstance(separator, str), "has a separator that is no text; write a string")
    triggers = _texts(entry, "triggers") if kind == TRIGGERED else None
    return TagGrammar(tuple(_tag(tag) for tag in _list(entry, "tags")), triggers, separator, **flags)


def _tag(entry: Any) -> Tag:
    _require(isinstance(entry, Mapping), "has a tag that is no object; write begin, content and end")
    _only(entry, ("type", "begin", "content", "end"), "a tag")
    content = entry.get("content")
    _require(
        isinstance(content, Mapping) and set(content) == {"type", "json_schema"} and content["type"] == "json_schema",
        "has a tag whose content is no JSON Schema; write {type: json_schema, json_schema: SCHEMA}",
    )
    assert isinstance(content, Mapping)
    return _made(entry.get("begin"), content["json_schema"], entry.get("end"))


def _old_tag(entry: Any) -> Tag:
    _require(isinstance(entry, Mapping), "has a structure that is no object; write begin, schema and end")
    _only(entry, ("begin", "schema", "end"), "a structure")
    return _made(entry.get("begin"), entry.get("schema"), entry.get("end"))


def _made(begin: Any, schema: Any, end: Any) -> Tag:
    _require(isinstance(begin, str) and begin != "", "has a tag without begin; write a text")
    _require(isinstance(end, str) and end != "", "has a tag without end; write a text")
    _require(isinstance(schema, Mapping | bool), "has a tag without a JSON Schema; write an object")
    return Tag(begin, schema, end)


def _texts(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    texts = _list(entry, key)
    _require(all(isinstance(text, str) and text for text in texts), f"has {key} that are no texts; write strings")
    return tuple(texts)


def _list(entry: Mapping[str, Any], key: str) -> Sequence[Any]:
    result = entry.get(key)
    _require(isinstance(result, list | tuple) and len(result) > 0, f"has no {key}; write a list")
    assert isinstance(result, list | tuple)
    return result


def _only(entry: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    unknown = next((key for key in entry if key not in keys), None)
    _require(unknown is None, f"has the key {unknown} in {where}; its keys are {', '.join(keys)}")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise InvalidRequest(f"structured {TYPE} {problem}")


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
    """Texts that begin a JSON value (`read_tags`)."""
    CASE = "case"
    """That of each case; a request never has it."""


WRITTEN_AS_JSON: Final = (ConstraintKind.JSON, ConstraintKind.CHOICE, ConstraintKind.STRUCTURAL_TAG)


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """One grammar, and the library that computes its masks.

    source: the schema, the structural tag or the list of choices as canonical JSON; the expression or the grammar as it
        was written. Raises InvalidRequest: no text.
    """

    kind: ConstraintKind
    source: str
    library: str = DEFAULT_LIBRARY

    def __post_init__(self) -> None:
        try:
            self.source.encode()
        except UnicodeEncodeError as error:
            text = f"structured {self.kind} has half of a surrogate pair, which no text can hold; remove it"
            raise InvalidRequest(text) from error

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
