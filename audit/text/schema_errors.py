"""One sentence per schema violation: the problem and the fix.

Knows JSON Schema keywords only, not the documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from audit.text.documents import Document, Place
from audit.text.unsafe import quoted

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

TYPE_WORDS: Final[Mapping[str, str]] = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def check_document(document: Document, schema: Mapping[str, Any]) -> None:
    """Validate a document against a schema.

    Raises:
        UserError: the first violation in the document's order, with its line.
    """
    check_part(document, (), schema)


def check_part(document: Document, part: Place, schema: Mapping[str, Any]) -> None:
    """Validate one part of a document against its own schema.

    Raises:
        UserError: the first violation in the document's order, with its line.
    """
    check_value(document, part, reduce(lambda whole, key: whole[key], part, document.data), schema)


def check_value(document: Document, part: Place, value: object, schema: Mapping[str, Any]) -> None:
    """Validate a value from a place of a document against a schema; raises as `check_part`."""
    # imported with the first document that needs validation
    from jsonschema import Draft202012Validator

    errors = [(error, (*part, *_place(error))) for error in Draft202012Validator(schema).iter_errors(value)]
    result = [
        (document.line(place), -len(error.absolute_path), str(error.validator), error, place) for error, place in errors
    ]
    if result:
        _, _, _, error, place = min(result, key=lambda item: item[:3])
        raise document.error(place, sentence(error, part))


def first_problem(value: object, validator: Draft202012Validator) -> str | None:
    """Describe a value's first violation; None if it is valid."""
    errors = sorted(validator.iter_errors(value), key=lambda error: [str(part) for part in error.absolute_path])
    return sentence(errors[0]) if errors else None


def suggestion(word: str, accepted: Iterable[str]) -> str:
    """Suggest a replacement for an unknown word."""
    # imported with the first mistake
    import difflib

    words = sorted(accepted)
    close = difflib.get_close_matches(word, words, n=1)
    lead = f"did you mean {close[0]}? " if close else ""
    return f"{lead}accepted: {', '.join(words) or 'none'}"


def sentence(error: ValidationError, part: Place = ()) -> str:
    """The problem, a semicolon and the fix; `part` is the value's place in the document."""
    describe = SENTENCES.get(str(error.validator), _other)
    return describe(error, name_of((*part, *error.absolute_path)))


def name_of(place: Place) -> str:
    """A place in readable form: `arms[0].proposer.gamma`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".") or "the document"


def _place(error: ValidationError) -> Place:
    """The place of the mistake: an unknown key has a line of its own."""
    place = tuple(error.absolute_path)
    unknown = _unknown_keys(error)
    if unknown:
        return (*place, unknown[0])
    if error.validator in ("pattern", "minLength") and "propertyNames" in error.absolute_schema_path:
        return (*place, str(error.instance))
    return place


def _unknown_keys(error: ValidationError) -> list[str]:
    if error.validator != "additionalProperties":
        return []
    keys: Mapping[str, Any] = _any(error.instance)
    return [key for key in keys if key not in _known_keys(error)]


def _known_keys(error: ValidationError) -> Mapping[str, Any]:
    known: Mapping[str, Any] = _any(error.schema).get("properties", {})
    return known


def _any(part: object) -> Any:
    """A field of an error that its validator always sets, although the library's type allows it to be unset."""
    return part


def _unknown(error: ValidationError, name: str) -> str:
    key = _unknown_keys(error)[0]
    return f"unknown key {quoted(key)} in {name}; {suggestion(key, _known_keys(error))}"


def _required(error: ValidationError, name: str) -> str:
    missing = [key for key in _any(error.validator_value) if key not in _any(error.instance)]
    return f"{name} lacks the key {missing[0]}; add it"


def _type(error: ValidationError, name: str) -> str:
    wanted = _any(error.validator_value)
    words = " or ".join(TYPE_WORDS[kind] for kind in ([wanted] if isinstance(wanted, str) else wanted))
    return f"{name} is {quoted(error.instance)}; write {words}"


def _enum(error: ValidationError, name: str) -> str:
    words = [str(word) for word in _any(error.validator_value)]
    return f"{name} is {quoted(error.instance)}, which is unknown; {suggestion(str(error.instance), words)}"


def _bound(words: str) -> Callable[[ValidationError, str], str]:
    return lambda error, name: f"{name} is {quoted(error.instance)}; write a number {words} {error.validator_value}"


def _empty(error: ValidationError, name: str) -> str:
    return f"{name} has fewer than {error.validator_value} entries or characters; add what is missing"


def _long(error: ValidationError, name: str) -> str:
    return f"{name} has more than {error.validator_value} entries or characters; shorten it"


def _other(error: ValidationError, name: str) -> str:
    return f"{name} is {quoted(error.instance)}, which breaks the rule {error.validator}; see `audit schema`"


SENTENCES: Final[Mapping[str, Callable[[ValidationError, str], str]]] = {
    "additionalProperties": _unknown,
    "required": _required,
    "type": _type,
    "enum": _enum,
    "const": lambda error, name: f"{name} is {quoted(error.instance)}; write {quoted(error.validator_value)}",
    "minimum": _bound("of at least"),
    "exclusiveMinimum": _bound("above"),
    "maximum": _bound("of at most"),
    "exclusiveMaximum": _bound("below"),
    "minItems": _empty,
    "minLength": _empty,
    "minProperties": _empty,
    "maxItems": _long,
    "maxLength": _long,
    "uniqueItems": lambda error, name: f"{name} names something twice: {quoted(error.instance)}; keep one of them",
    "pattern": lambda error, name: (
        f"{name} has {quoted(error.instance)}; write something that matches {error.validator_value}"
    ),
}
