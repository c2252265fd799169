"""Whether a text follows a grammar, judged without the library that masked it.

JSON: Python's own reader without NaN and with control characters refused, then jsonschema; alone or in structural
tags. Regular expressions: Python's `re`. Choices: comparison. Grammars in Lark: the other library, byte by byte.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from jsonschema import Draft202012Validator, SchemaError

from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintKind, ConstraintSpec, TagGrammar, read_tags

QUOTED: Final = 40
OTHER: Final = {"llguidance": "xgrammar", "xgrammar": "llguidance"}
"""The library that judges the grammars of each."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """A judge's opinion of a text: a problem, none, or nothing (`silent` gives the reason)."""

    problem: str | None = None
    silent: str | None = None
    repeated_keys: bool = False


Judge = Callable[[str], Opinion]


def judge_of(spec: ConstraintSpec) -> Judge:
    """The judge of a grammar's texts; it may be used for many, and is silent about a record's damaged grammar."""
    makers = {
        ConstraintKind.JSON: _by_schema,
        ConstraintKind.REGEX: _by_expression,
        ConstraintKind.CHOICE: _by_list,
        ConstraintKind.GRAMMAR: _by_other_library,
        ConstraintKind.STRUCTURAL_TAG: _by_tags,
    }
    try:
        return makers[spec.kind](spec)
    except (InvalidRequest, SchemaError, LookupError, ValueError, TypeError) as error:
        reason = f"the recorded grammar cannot be read ({error!s:.120})"
        return lambda _: Opinion(silent=reason)


def _by_schema(spec: ConstraintSpec) -> Judge:
    Draft202012Validator.check_schema(spec.value)
    validator = Draft202012Validator(spec.value)

    def judge(text: str) -> Opinion:
        repeated: list[str] = []
        try:
            value = strict_decoder(repeated).decode(text)
        except ValueError as error:
            return Opinion(f"it is no JSON: {error} in {_shown(text)}")
        wrong = next(iter(validator.iter_errors(value)), None)
        problem = None if wrong is None else f"the schema refuses it: {wrong.message[:120]} in {_shown(text)}"
        return Opinion(problem, repeated_keys=bool(repeated))

    return judge


def _by_tags(spec: ConstraintSpec) -> Judge:
    grammar = read_tags(spec.value)

    def judge(text: str) -> Opinion:
        repeated: list[str] = []
        wrong = TagReader(grammar, repeated).problem(text)
        return Opinion(None if wrong is None else f"{wrong} in {_shown(text)}", repeated_keys=bool(repeated))

    return judge


def _by_expression(spec: ConstraintSpec) -> Judge:
    try:
        expression = re.compile(spec.source)
    except re.error as error:
        reason = f"Python's re does not read the expression ({error})"
        return lambda _: Opinion(silent=reason)
    return lambda text: Opinion(None if expression.fullmatch(text) else f"the expression does not match {_shown(text)}")


def _by_list(spec: ConstraintSpec) -> Judge:
    texts = frozenset(spec.value)
    return lambda text: Opinion(None if text in texts else f"{_shown(text)} is none of the choices")


def _by_other_library(spec: ConstraintSpec) -> Judge:
    # imported late: a check of other grammars needs no library
    from engine.constraints.compiled import BYTES, open_library

    other = OTHER[spec.library]
    try:
        grammar = open_library(other, BYTES).compile(ConstraintSpec(spec.kind, spec.source, other))
    except InvalidRequest as error:
        reason = str(error)
        return lambda _: Opinion(silent=reason)

    def judge(text: str) -> Opinion:
        matcher = grammar()
        for at, byte in enumerate(text.encode()):
            if not matcher.accept(byte):
                return Opinion(f"{other} refuses byte {at + 1} of {_shown(text)}")
        return Opinion(None if matcher.complete() else f"by {other}, {_shown(text)} is not whole")

    return judge


def _shown(text: str) -> str:
    """The end of a text, where answers go wrong most often."""
    return repr(text if len(text) <= QUOTED else f"...{text[-QUOTED:]}")


def strict_decoder(repeated: list[str]) -> json.JSONDecoder:
    """A decoder that adds to `repeated` the keys that an object has twice.

    It raises ValueError for text that is no JSON.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        repeated.extend(name for name in set(names) if names.count(name) > 1)
        return dict(items)

    return json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class TagReader:
    """Reads whole texts.

    Args:
        grammar: the structural tag.
        repeated: takes the keys that an object has twice.
    """

    def __init__(self, grammar: TagGrammar, repeated: list[str]) -> None:
        self._grammar = grammar
        self._decoder = strict_decoder(repeated)
        self._validators = [Draft202012Validator(tag.schema) for tag in grammar.tags]

    def problem(self, text: str) -> str | None:
        """Why the text does not follow the grammar; None if it does."""
        at = count = 0
        while (begin := self._next(text, at, count)) is not None:
            if isinstance(begin, str):
                return begin
            ending = self._tag(text, begin)
            if isinstance(ending, str):
                return ending
            at, count = ending, count + 1
        return "it has no tag" if self._grammar.at_least_one and not count else None

    def _next(self, text: str, at: int, count: int) -> int | str | None:
        """Where the next tag begins; None if the text ends without one; a problem in words."""
        grammar = self._grammar
        if grammar.stop_after_first and count:
            return None if at == len(text) else f"it goes on after its first tag, at character {at + 1}"
        if grammar.triggers is None:
            if at == len(text):
                return None
            if not count:
                return at
            between = text.startswith(grammar.separator, at)
            return at + len(grammar.separator) if between else f"no separator at character {at + 1}"
        if grammar.at_least_one and not count:
            return at
        return min((runs for trigger in grammar.triggers if (runs := text.find(trigger, at)) >= 0), default=None)

    def _tag(self, text: str, at: int) -> int | str:
        """Where the tag that begins at `at` ends, or why there is none."""
        problems = [f"no tag begins at character {at + 1}"]
        for tag, validator in zip(self._grammar.tags, self._validators, strict=True):
            if not text.startswith(tag.begin, at):
                continue
            read = self._value(text, at + len(tag.begin), validator)
            if isinstance(read, str):
                problems.append(read)
            elif text.startswith(tag.end, read):
                return read + len(tag.end)
            else:
                problems.append(f"the tag {tag.begin!r} does not end at character {read + 1}")
        return problems[-1]

    def _value(self, text: str, at: int, validator: Draft202012Validator) -> int | str:
        """Where the JSON value ends, or what is wrong with it."""
        if at == len(text) or text[at].isspace():
            return f"no JSON at character {at + 1}"
        try:
            value, end = self._decoder.raw_decode(text, at)
        except ValueError as error:
            return f"the value is no JSON: {error}"
        wrong = next(iter(validator.iter_errors(value)), None)
        return end if wrong is None else f"the schema refuses a value: {wrong.message[:120]}"
