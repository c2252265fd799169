"""The tool calls that a record reports, in a form that can be compared and judged.

Equal arguments have equal canonical texts: the order of keys is free and numbers count by value. A call is judged
against the schema of its tool as the request offered it, with no value cast to another type.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.evidence.records import RequestRecord
from audit.evidence.streams import stream_of
from engine.core.sequences import agreeing
from engine.core.types import FinishReason, ToolOffer
from engine.record.tool_calls import ParsedCall, ParsedCalls, ResponseTemplate, parse_calls

FACT: Final = "tools"
LONGEST: Final = 120


@dataclass(frozen=True, slots=True)
class AnsweredOffer:
    """The tools of one request, and the calls that the engine parsed.

    template: how the family writes calls; None if the engine does not say it, as a server does not.
    finish: why the answer ended, in the server's own word; empty for the built-in engine.
    parallel: the request allowed several calls.
    streamed: what a server read out of the same tokens in a stream; None if it was not asked, or they are not the same.
    """

    offer: ToolOffer
    parsed: ParsedCalls
    template: ResponseTemplate | None
    finish: str = ""
    parallel: bool = True
    streamed: ParsedCalls | None = None


def offers_tools(request: RequestRecord) -> bool:
    """True if the record says that the request offered tools."""
    return FACT in request.trace.header.facts


def asks_for_calls(request: RequestRecord) -> bool:
    """True if the request offered tools and something looked for calls in its answer."""
    fact = request.trace.header.facts.get(FACT)
    return fact is not None and "calls" in fact and fact.get("choice") != "none"


def unread_reason(request: RequestRecord) -> str | None:
    """Why nothing read the calls of a request that offered tools; None if something did."""
    reason = request.trace.header.facts.get(FACT, {}).get("unread")
    return None if reason is None else str(reason)


def answered(request: RequestRecord) -> AnsweredOffer | None:
    """The offer and the calls; None if the request offered no tools or nothing read its calls."""
    fact = request.trace.header.facts.get(FACT)
    if not isinstance(fact, Mapping) or "calls" not in fact:
        return None
    offer = ToolOffer(tuple(fact.get("offered", ())), fact.get("choice", "auto"))
    finish = str(request.trace.header.facts.get("finish", ""))
    streamed = _calls_of(fact["streamed"]) if "streamed" in fact else None
    parallel = bool(fact.get("parallel", True))
    return AnsweredOffer(offer, _calls_of(fact), fact.get("template"), finish, parallel, streamed)


def _calls_of(fact: Mapping[str, Any]) -> ParsedCalls:
    calls = tuple(ParsedCall(str(call["name"]), call.get("arguments")) for call in fact["calls"])
    return ParsedCalls(calls, fact.get("problem"))


def can_reread(answer: AnsweredOffer) -> bool:
    """True if the record says how to read the calls out of the text."""
    # the project's own reader leaves an answer alone that must not call
    return answer.template is not None or (answer.offer.choice == "none" and not answer.finish)


def reread(request: RequestRecord, answer: AnsweredOffer) -> ParsedCalls | None:
    """The calls in the request's text, read at once; None if the record does not say how to read them."""
    if answer.template is None:
        return ParsedCalls() if can_reread(answer) else None
    return parse_calls(_committed(request), answer.template, answer.offer)


def _committed(request: RequestRecord) -> str:
    """The text before filters changed it, up to a stop string."""
    stream = stream_of(request.trace.header)
    if stream is None:
        return request.text
    return stream.decoded[: stream.read] if request.finish_reason is FinishReason.STOP else stream.decoded


def canonical(value: Any) -> str:
    """The text of a JSON value that all equal values share."""
    return json.dumps(_by_value(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _by_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _by_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_by_value(entry) for entry in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def texts_of(parsed: ParsedCalls) -> tuple[str, ...]:
    """Every call as `name(arguments)`, in order, and a mark at the end if the rest could not be read."""
    calls = tuple(f"{call.name}({canonical(call.arguments)})" for call in parsed.calls)
    return calls if parsed.problem is None else (*calls, "unreadable")


def difference(first: ParsedCalls, second: ParsedCalls) -> str | None:
    """The first difference of two answers' calls in words; None if they are equal."""
    ours, theirs = texts_of(first), texts_of(second)
    if ours == theirs:
        return None
    at = agreeing(ours, theirs)
    shown = [side[at][:LONGEST] if at < len(side) else "no call" for side in (ours, theirs)]
    return f"call {at + 1} is {shown[0]}, not {shown[1]}"


def defect(request: RequestRecord, answer: AnsweredOffer) -> str | None:
    """Why the answer is no valid answer to the offer; None if it is.

    Every call names an offered tool, its arguments fit the tool's schema, the answer did not reach its length, and the
    number of calls fits the choice.
    """
    if request.finish_reason is FinishReason.LENGTH:
        return "the answer is cut by its length"
    if answer.parsed.problem is not None:
        return f"a call cannot be read: {answer.parsed.problem[:LONGEST]}"
    for call in answer.parsed.calls:
        problem = _call_defect(call, answer.offer.tools)
        if problem is not None:
            return problem
    return _choice_defect(answer) or _finish_defect(answer) or stream_defect(answer)


def stream_defect(answer: AnsweredOffer) -> str | None:
    """How a server's reading of the streamed tokens differs from that of the whole answer; None if it does not."""
    result = None if answer.streamed is None else difference(answer.streamed, answer.parsed)
    return None if result is None else f"streamed, {result} as in the whole answer"


def _choice_defect(answer: AnsweredOffer) -> str | None:
    choice, calls = answer.offer.choice, answer.parsed.calls
    if len(calls) > 1 and not answer.parallel:
        return f"it makes {len(calls)} calls although parallel_tool_calls is false"
    if choice == "none" and calls:
        return "it calls a tool although tool_choice is none"
    if choice == "required" and not calls:
        return "it calls no tool although tool_choice is required"
    if isinstance(choice, Mapping) and any(call.name != choice["name"] for call in calls):
        return f"it calls another tool than {choice['name']}, which tool_choice names"
    return (
        f"it does not call {choice['name']}, which tool_choice names"
        if isinstance(choice, Mapping) and not calls
        else None
    )


def _finish_defect(answer: AnsweredOffer) -> str | None:
    """Servers end an answer with calls by `tool_calls`, or by `stop` if the choice names the tool."""
    if answer.finish == "tool_calls" and not answer.parsed.calls:
        return "it ended with tool_calls and holds no call"
    if answer.finish == "stop" and answer.parsed.calls and answer.offer.choice == "auto":
        return "it holds a call and ended with stop, not with tool_calls"
    return None


def _call_defect(call: ParsedCall, tools: Sequence[Mapping[str, Any]]) -> str | None:
    # imported with the first call that is judged
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError, best_match
    from referencing.exceptions import Unresolvable

    functions = [tool.get("function", tool) for tool in tools]
    function = next((function for function in functions if function.get("name") == call.name), None)
    if function is None:
        return f"it calls {call.name[:LONGEST]!r}, which the request does not offer"
    if not isinstance(call.arguments, Mapping):
        return f"the arguments of {call.name} are no JSON object"
    schema = function.get("parameters") or {}
    try:
        Draft202012Validator.check_schema(schema)
        error = best_match(Draft202012Validator(schema).iter_errors(call.arguments))
    except (SchemaError, Unresolvable) as broken:
        return f"the schema of {call.name} is no JSON Schema: {str(broken).splitlines()[0][:LONGEST]}"
    return None if error is None else f"the arguments of {call.name} do not fit its schema: {error.message[:LONGEST]}"


def spans_of(request: RequestRecord) -> tuple[range, ...]:
    """The generated tokens of each call in the answer, by their indices; empty if nothing says them."""
    fact = request.trace.header.facts.get(FACT, {})
    return tuple(range(int(first), int(end)) for first, end in fact.get("spans", ()))
