"""Structural tags: answers in which certain texts begin a JSON value, such as a tool call.

The document is the one that xgrammar and vLLM take, in two of its formats, with a JSON Schema in every tag:
`triggered_tags` lets text stand beside the tags, `tags_with_separator` does not. vLLM's older form, `structures` and
`triggers`, is read as `triggered_tags`. A tag is `begin`, the value, `end`, with nothing between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.core.errors import InvalidRequest

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
