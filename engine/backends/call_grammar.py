"""The grammar of an answer that must call tools: made of the offered tools and of the way in which the family writes
calls.

That way is read off the chat template: two calls with known names and arguments are written, and the texts around them
are what every call has. The response template says where a call opens and closes, and its parser must read the two
calls back. An answer under the grammar is calls alone, without text beside them: one or more under `required`, one of
the named tool.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.core.errors import InvalidRequest
from engine.core.structured import DEFAULT_LIBRARY, ConstraintKind, ConstraintSpec, Tag, TagGrammar, tag_spec
from engine.core.types import Request, ToolOffer
from engine.record.tool_calls import FIELD, ParsedCall, ResponseTemplate, parse_calls

Write = Callable[[Sequence[Mapping[str, Any]]], str]
"""Messages -> the conversation's text by the chat template."""
KNOWN: Final = (ParsedCall("first_name", {"first_key": 1}), ParsedCall("second_name", {"second_key": 2}))
"""The calls that are written."""
EACH: Final = ConstraintSpec(ConstraintKind.CASE, "", DEFAULT_LIBRARY)
"""The grammar of a request that has none: its own, by the default library."""
INSTEAD: Final = "use tool_choice auto or none"


@dataclass(frozen=True, slots=True)
class CallForm:
    """The texts around a call's name and its arguments, and that between two calls; arguments are a JSON object."""

    before: str
    between: str
    after: str
    separator: str

    def written(self, calls: Sequence[ParsedCall]) -> str:
        """The text of an answer of these calls."""
        parts = (
            f"{self.before}{name_text(call.name)}{self.between}{json.dumps(call.arguments)}{self.after}"
            for call in calls
        )
        return self.separator.join(parts)


def name_text(name: str) -> str:
    """A name between its quotation marks."""
    return json.dumps(name, ensure_ascii=False)[1:-1]


def form_of(write: Write, template: ResponseTemplate) -> CallForm | None:
    """How a family writes calls; None if name and JSON arguments do not stand between fixed texts."""
    functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in KNOWN]
    calls = [{"type": "function", "function": function} for function in functions]
    asked = {"role": "user", "content": "x"}
    try:
        text = write([asked, {"role": "assistant", "content": "", "tool_calls": calls}])
    except Exception:  # what a template makes of messages that it does not expect is its own affair
        return None
    field = template.get("fields", {}).get(FIELD, {})
    opens, closes = _literals(field.get("open")), _literals(field.get("close"))
    first = _around(text, KNOWN[0], opens, closes)
    second = _around(text, KNOWN[1], opens, closes)
    if first is None or second is None or first.texts != second.texts or first.end > second.begin:
        return None
    before, between, after = first.texts
    form = CallForm(before, between, after, text[first.end : second.begin])
    read = parse_calls(form.written(KNOWN), template, ToolOffer(tuple(functions)))
    return form if read.calls == KNOWN and read.problem is None else None


@dataclass(frozen=True, slots=True)
class _WrittenCall:
    begin: int
    end: int
    texts: tuple[str, ...]


def _around(text: str, call: ParsedCall, opens: Sequence[str], closes: Sequence[str]) -> _WrittenCall | None:
    """Where a call stands, and the texts before its name, between name and arguments, and after the arguments."""
    name, key = text.find(call.name), text.find(next(iter(call.arguments)))
    begin = max((text.rfind(other, 0, max(name, 0)) for other in opens), default=-1)
    arguments = text.rfind("{", 0, max(key, 0))
    if not 0 <= begin < name < arguments:
        return None
    try:
        value, after = json.JSONDecoder().raw_decode(text, arguments)
    except ValueError:
        return None
    ends = [runs + len(close) for close in closes if (runs := text.find(close, after)) >= 0]
    if value != call.arguments or not ends:
        return None
    named = name + len(call.name)
    return _WrittenCall(begin, min(ends), (text[begin:name], text[named:arguments], text[after : min(ends)]))


def _literals(entry: Any) -> tuple[str, ...]:
    """The texts of a response template's key, which may be one, several, or an expression that stands elsewhere."""
    given = [entry] if isinstance(entry, str) else entry if isinstance(entry, list) else []
    return tuple(text for text in given if isinstance(text, str) and text)


def grammar_of(form: CallForm, offer: ToolOffer, library: str) -> ConstraintSpec:
    """The grammar of an answer that the offer demands."""
    functions = [tool.get("function", tool) for tool in offer.tools]
    if isinstance(offer.choice, Mapping):
        functions = [function for function in functions if function["name"] == offer.choice["name"]]
    tags = tuple(
        Tag(
            f"{form.before}{name_text(function['name'])}{form.between}",
            function.get("parameters") or {"type": "object"},
            form.after,
        )
        for function in functions
    )
    named = isinstance(offer.choice, Mapping)
    return tag_spec(TagGrammar(tags, None, form.separator, at_least_one=True, stop_after_first=named), library)


class CallGrammars:
    """Gives requests that demand a call their grammar.

    Args:
        write: by the target's chat template; None without one.
        template: the response template of the target's family; None without one.
    """

    def __init__(self, write: Write | None, template: ResponseTemplate | None) -> None:
        self._write, self._template = write, template
        self._form: CallForm | None = None

    def constrained(self, request: Request) -> Request:
        """The request with the grammar of the calls that it demands, by its own library; others as they are, and so is
        one that has this grammar already, such as one that is read from a record.

        Raises:
            InvalidRequest: the request has a grammar of its own too, or nothing says how the family writes calls.
        """
        if request.tools is None or not request.tools.demands:
            return request
        given = request.sampling.structured or EACH
        if given.kind not in (ConstraintKind.CASE, ConstraintKind.STRUCTURAL_TAG):
            raise _two_grammars(request, request.tools, given)
        spec = grammar_of(self._known_form(request), request.tools, given.library)
        if given.kind is ConstraintKind.STRUCTURAL_TAG:
            # a record keeps the grammar's text, and the tools with their keys in another order
            if given.value != spec.value:
                raise _two_grammars(request, request.tools, given)
            return request
        return replace(request, sampling=replace(request.sampling, structured=spec))

    def _known_form(self, request: Request) -> CallForm:
        assert request.tools is not None
        if self._form is None and self._write is not None and self._template is not None:
            self._form = form_of(self._write, self._template)
        if self._form is None:
            lacks = (
                "has no response_template" if self._template is None else "writes no calls that a grammar can follow"
            )
            choice = choice_text(request.tools)
            raise InvalidRequest(f"request {request.id}: tool_choice {choice}, but the target {lacks}; {INSTEAD}")
        return self._form


def _two_grammars(request: Request, offer: ToolOffer, given: ConstraintSpec) -> InvalidRequest:
    problem = f"has a grammar ({given.kind}) and tool_choice {choice_text(offer)}, which is another one"
    return InvalidRequest(f"request {request.id} {problem}; remove structured, or {INSTEAD}")


def choice_text(offer: ToolOffer) -> str:
    """The choice in words."""
    return offer.choice if isinstance(offer.choice, str) else f"with the name {offer.choice['name']}"
