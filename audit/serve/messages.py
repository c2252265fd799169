"""Messages and tools in OpenAI's form, as a chat template takes them.

Reads the fields of a request's body strictly: a wrong type is refused, an unknown field too.

null counts as absent, as at OpenAI.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from audit.serve.refusals import ApiRefusal, invalid
from engine.core.types import ToolOffer


class BodyFields:
    """The fields of one body; all methods raise ApiRefusal."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, Mapping):
            raise invalid("the body is no JSON object")
        self._body = body
        self._left = {name for name, value in body.items() if value is not None}

    def raw(self, name: str) -> Any:
        """The value as it is; None if absent."""
        self._left.discard(name)
        return self._body.get(name)

    def _fitting(self, name: str, wanted: str, fits: Callable[[Any], bool]) -> Any:
        """The value, which must fit unless it is absent; `wanted` says in words what does."""
        value = self.raw(name)
        if value is not None and not fits(value):
            raise _wrong(name, wanted)
        return value

    def text(self, name: str) -> str | None:
        """A text."""
        value: str | None = self._fitting(name, "a text", lambda given: isinstance(given, str))
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._fitting(name, "true or false", lambda given: isinstance(given, bool))
        return default if value is None else bool(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number in [low, high]; None if absent."""
        wanted = f"a whole number from {low} to {high}"
        value: int | None = self._fitting(name, wanted, lambda given: type(given) is int and low <= given <= high)
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A number in [low, high]."""
        wanted = f"a number from {low:g} to {high:g}"
        value = self._fitting(name, wanted, lambda given: type(given) in (int, float) and low <= given <= high)
        return default if value is None else float(value)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A text or a list of texts, none of them empty."""
        value = self.raw(name)
        listed = [value] if isinstance(value, str) else value
        if listed is None:
            return ()
        if not isinstance(listed, list) or len(listed) > most or not all(isinstance(x, str) and x for x in listed):
            raise _wrong(name, f"a text or a list of at most {most} texts, none empty")
        return tuple(listed)

    def ids(self, name: str) -> tuple[int, ...]:
        """A list of token ids."""
        return tuple(self._fitting(name, "a list of token ids", token_ids) or ())

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """A JSON object."""
        value: Mapping[str, Any] | None = self._fitting(name, "an object", lambda given: isinstance(given, Mapping))
        return value

    def fixed(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Fields of which one value means what the server does anyway; others are refused."""
        for name, values in allowed.items():
            value = self.raw(name)
            if value is not None and value not in values:
                raise invalid(f"{name}: this server has only {' and '.join(map(repr, values))}", name, "unsupported")

    def ignore(self, names: Collection[str]) -> None:
        """Fields that change no answer."""
        self._left -= set(names)

    def end(self) -> None:
        """Refuse what nobody read."""
        if self._left:
            name = min(self._left)
            raise invalid(f"{name}: this server has no such parameter; leave it out", name, "unknown_parameter")


def token_ids(value: Any) -> bool:
    """True for a list of token ids."""
    return isinstance(value, Sequence) and all(type(item) is int and 0 <= item < 2**31 for item in value)


def _wrong(name: str, wanted: str) -> ApiRefusal:
    return invalid(f"{name}: not {wanted}", name)


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
    return tuple(_message(item, f"messages[{at}]") for at, item in enumerate(given))


def _message(given: Any, where: str) -> Mapping[str, Any]:
    role = given.get("role") if isinstance(given, Mapping) else None
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}: its role is none of {', '.join(ROLES)}", where)
    made: dict[str, Any] = {"role": ROLES[role], "content": _content(given.get("content"), where)}
    calls = given.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise invalid(f"{where}: tool_calls is no list", where)
        made["tool_calls"] = [_call(call, where) for call in calls]
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
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
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
