"""Whether a text follows a grammar, judged without the library that masked it.

JSON: Python's own reader without NaN and with control characters refused, then jsonschema; alone or in structural
tags. Regular expressions: Python's `re`. Choices: comparison. Grammars in Lark: the other library, byte by byte.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jsonschema import Draft202012Validator, SchemaError

from audit.checks.schema_conformance.strict_json import strict_decoder
from audit.checks.schema_conformance.tags import TagReader
from engine.core.errors import InvalidRequest
from engine.core.structural_tag import read_tags
from engine.core.structured import ConstraintKind, ConstraintSpec

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
        matcher = grammar.matcher()
        for at, byte in enumerate(text.encode()):
            if not matcher.accept(byte):
                return Opinion(f"{other} refuses byte {at + 1} of {_shown(text)}")
        return Opinion(None if matcher.complete() else f"by {other}, {_shown(text)} is not whole")

    return judge


def _shown(text: str) -> str:
    """The end of a text, where answers go wrong most often."""
    return repr(text if len(text) <= QUOTED else f"...{text[-QUOTED:]}")
