"""Messages and tools in OpenAI's form, as a chat template takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from audit.serve.body_fields import BodyFields
from audit.serve.refusals import invalid
from engine.core.types import ToolOffer

ROLES: Final[Mapping[str, str]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Roles of a conversation, and what templates call them."""
MOST_TOOLS: Final = 128


def messages_of(given: Any) -> tuple[Mapping[str, Any], ...]:
    """The messages; raises ApiRefusal."""
    if not isinstance(given, list) or not given:
        raise invalid("messages: not a list of at least one message", "messages")
    return tuple(_message(each, f"messages[{at}]") for at, each in enumerate(given))


def _message(given: Any, where: str) -> Mapping[str, Any]:
    role = given.get("role") if isinstance(given, Mapping) else None
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}: its role is none of {', '.join(ROLES)}", where)
    made: dict[str, Any] = {"role": ROLES[role], "content": _content(given.get("content"), where)}
    calls = given.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise invalid(f"{where}: tool_calls is no list", where)
        made["tool_calls"] = [_call(each, where) for each in calls]
    for name in ("name", "tool_call_id"):
        if isinstance(given.get(name), str):
            made[name] = given[name]
    return made


def _content(given: Any, where: str) -> str:
    """The text of a message, which may come in parts."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else [None]
    texts = [each.get("text") if isinstance(each, Mapping) and each.get("type") == "text" else None for each in parts]
    known = [text for text in texts if isinstance(text, str)]
    if len(known) < len(parts):
        raise invalid(f"{where}: content is neither a text nor a list of parts of type text", where, "unsupported")
    return "".join(known)


def _call(given: Any, where: str) -> Mapping[str, Any]:
    """A call of an earlier answer; templates write arguments from values, not from their JSON."""
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise invalid(f"{where}: a tool call without the name of its function", where)
    arguments = function.get("arguments", "{}")
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        raise invalid(f"{where}: the arguments of {function['name']} are no JSON", where) from None
    return {"id": str(given.get("id", "")), "type": "function", "function": {**function, "arguments": value}}


def offer_of_body(fields: BodyFields) -> ToolOffer | None:
    """The tools that a request offers, with its choice; None without tools. Raises ApiRefusal."""
    tools, choice = fields.raw("tools"), fields.raw("tool_choice")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice: the request offers no tools", "tool_choice")
        return None
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS or not all(map(_is_tool, tools)):
        raise invalid(f"tools: not a list of at most {MOST_TOOLS} functions with names", "tools")
    return ToolOffer(tuple(tools), _choice(choice, [tool["function"]["name"] for tool in tools]))


def _is_tool(given: Any) -> bool:
    if not isinstance(given, Mapping) or given.get("type") != "function":
        return False
    function = given.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        return False
    return isinstance(function.get("parameters") or {}, Mapping)


def _choice(given: Any, names: list[str]) -> str | Mapping[str, str]:
    if given is None:
        return "auto"
    if given in ("auto", "none", "required"):
        return str(given)
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in names:
        raise invalid("tool_choice: not auto, none, required or the name of an offered function", "tool_choice")
    return {"name": name}
