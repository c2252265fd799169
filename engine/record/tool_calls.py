"""Tool calls in an answer's text, and what a record says about them.

The parser is the one that transformers ships: it is driven by a declarative response template of the model's family
(`response_template` of the tokenizer), takes text as it comes and never takes any back. It sees the answer alone: of a
chat template that begins the answer itself, such as with an open reasoning, it does not see that beginning. A call that
the text leaves open at its end counts if its content can be read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from engine.core.errors import InvalidRequest
from engine.core.types import ToolOffer

FIELD: Final = "tool_calls"
"""The field of a response template that holds the calls, as in messages."""
MARKED: Final = ("json",)
"""Content parsers whose values carry their own types; those of others are texts, cast by the tool's schema."""
LONGEST_PROBLEM: Final = 200

ResponseTemplate = Mapping[str, Any]
"""A declarative template as `transformers.utils.chat_parsing` takes it, as JSON."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call: the function's name, and its arguments as a JSON value."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ParsedCalls:
    """The calls of an answer in order; `problem` says why its rest could not be read, None if all of it was."""

    calls: tuple[ParsedCall, ...] = ()
    problem: str | None = None


class Border(StrEnum):
    """Where a call begins, and where it ends."""

    OPEN = "region_open"
    CLOSE = "region_close"


class CallParser:
    """Reads the calls out of a text that comes in pieces."""

    def __init__(self, template: ResponseTemplate, offer: ToolOffer) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        try:
            cast = template["fields"].get(FIELD, {}).get("content", "text") not in MARKED
            self._parser: Any = ResponseParser(dict(template), prefix="", tools=list(offer.tools) if cast else None)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(f"the template of tool calls cannot be read: {_one_line(error)}") from error
        self._calls: list[ParsedCall] = []
        self._problem: str | None = None
        self.content = ""
        """The text beside the calls, once `finish` has read everything."""

    def feed(self, text: str) -> tuple[Border, ...]:
        """Read on; returns the borders of calls in the text. After text that cannot be read, nothing more is read."""
        if self._problem is not None or not text:
            return ()
        try:
            return self._note(self._parser.feed(text))
        except (ValueError, KeyError) as error:
            self._problem = _one_line(error)
            return (Border.CLOSE,)

    @property
    def closed(self) -> tuple[ParsedCall, ...]:
        """The calls that have ended so far."""
        return tuple(self._calls)

    def finish(self) -> ParsedCalls:
        """The calls of the whole text."""
        if self._problem is None:
            try:
                message, events = self._parser.finalize()
                self._note(events)
                self.content = str(message.get("content") or "")
            except (ValueError, KeyError) as error:
                self._problem = _one_line(error)
        return ParsedCalls(tuple(self._calls), self._problem)

    def _note(self, events: list[dict[str, Any]]) -> tuple[Border, ...]:
        ours = [event for event in events if event["field"] == FIELD and event["type"] in tuple(Border)]
        for event in ours:
            value = event.get("value", [])
            self._calls += [_call(entry) for entry in (value if isinstance(value, list) else [value])]
        return tuple(Border(event["type"]) for event in ours)


def _call(value: Any) -> ParsedCall:
    """One value of the field, in the form of messages; raises ValueError: it has another form."""
    function = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("a call without the name of its function")
    return ParsedCall(function["name"], function.get("arguments"))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:LONGEST_PROBLEM]


def parse_calls(text: str, template: ResponseTemplate, offer: ToolOffer) -> ParsedCalls:
    """The calls of a whole text, read at once."""
    parser = CallParser(template, offer)
    parser.feed(text)
    return parser.finish()


def parser_name() -> str:
    """The library behind the parser, with its version."""
    import transformers

    return f"transformers {transformers.__version__}"


def calls_to_json(parsed: ParsedCalls) -> dict[str, Any]:
    """The keys `calls` and `problem` of a record's fact `tools`."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in parsed.calls]
    return {"calls": calls, **({} if parsed.problem is None else {"problem": parsed.problem})}


def offer_to_json(offer: ToolOffer) -> dict[str, Any]:
    """The keys `offered` and `choice` of that fact."""
    choice = offer.choice if isinstance(offer.choice, str) else dict(offer.choice)
    return {"offered": [dict(tool) for tool in offer.tools], "choice": choice}
