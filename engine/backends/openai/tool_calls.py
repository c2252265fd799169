"""The calls that a server read out of its answers, in the form of the record.

Names and arguments are the server's; only the JSON of the arguments is parsed here. A call that lacks a name, or whose
arguments are no JSON, is a problem of the answer. Where a request was sent whole and streamed and both answers have the
same token ids, the streamed answer's calls are recorded too: they are a second reading of one text.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from engine.backends.openai.response import Completion, ToolCall
from engine.backends.openai.retry import RequestResult
from engine.backends.openai.settings import OpenAISettings
from engine.core.types import Request, ToolOffer
from engine.record.tool_calls import ParsedCall, ParsedCalls, calls_to_json, offer_to_json


def tool_facts(settings: OpenAISettings, request: Request, asked: RequestResult, answer: Completion) -> dict[str, Any]:
    """The fact `tools` of one answer: the offer as it was sent, and the calls; empty without an offer."""
    if request.tools is None:
        return {}
    facts = {**offer_to_json(sent_offer(settings, request.tools)), "parser": "the server"}
    if settings.parallel_tool_calls is False:
        facts["parallel"] = False
    if _same_text(answer, asked.streamed):
        assert asked.streamed is not None
        facts["streamed"] = calls_to_json(calls_of(asked.streamed))
    return {"tools": {**facts, **calls_to_json(calls_of(answer))}}


def sent_offer(settings: OpenAISettings, offer: ToolOffer) -> ToolOffer:
    """The offer with the choice that the request has: the prompt's own, else the arm's."""
    choice = settings.tool_choice
    if offer.choice != "auto" or choice is None:
        return offer
    if isinstance(choice, str):
        return dataclasses.replace(offer, choice=choice)
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return dataclasses.replace(offer, choice={"name": name}) if isinstance(name, str) else offer


def calls_of(answer: Completion) -> ParsedCalls:
    """The calls that can be read, and the first problem of the others."""
    problems = [_problem(at, call) for at, call in enumerate(answer.tool_calls, 1)]
    calls = [
        ParsedCall(call.name, parsed(call.arguments)["value"])
        for call, problem in zip(answer.tool_calls, problems, strict=True)
        if problem is None
    ]
    return ParsedCalls(tuple(calls), next(filter(None, problems), None))


def _problem(at: int, call: ToolCall) -> str | None:
    if not call.name:
        return f"call {at} has no name"
    mapping = parsed(call.arguments)
    return None if mapping["valid"] else f"the arguments of {call.name}: {mapping['problem']}"


def _same_text(whole: Completion, streamed: Completion | None) -> bool:
    """True if both readings are of the same tokens. A call that the length limit cut is text to a parser of whole
    answers and half a call to a parser of parts.
    """
    if streamed is None or whole.finish == "length" or whole.token_ids is None:
        return False
    return whole.token_ids == streamed.token_ids


def parsed(text: str) -> dict[str, Any]:
    """The result of a JSON parser independent of the server."""
    try:
        return {"valid": True, "value": json.loads(text, parse_constant=_no_constant)}
    except (ValueError, RecursionError) as error:
        return {"valid": False, "problem": str(error)[:200]}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
