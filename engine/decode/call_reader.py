"""The tool calls of one request, read from its text while it is decoded.

The reader gets committed tokens only, so no parser ever sees a token that the target may still reject. It holds back
what later tokens may change: an incomplete character, and what may become a stop string.
"""

from collections.abc import Sequence
from typing import Any, Final

from engine.core.types import Request, ToolOffer
from engine.record import tool_calls
from engine.sampling.stopping import Decode
from engine.stream.holding import settled

NO_TEMPLATE: Final = "the target's tokenizer has no response_template"
CHANGED: Final = "the text that was read is not how the answer begins"


class CallReader:
    """Reads one request's calls.

    Args:
        request: offers tools.
        template: the response template of the target's family.
        decode: from generated tokens to text.
    """

    def __init__(self, request: Request, template: tool_calls.ResponseTemplate, decode: Decode) -> None:
        assert request.tools is not None
        self._offer, self._template, self._decode = request.tools, template, decode
        self._stops = request.sampling.stop
        self._parser = tool_calls.CallParser(template, request.tools)
        self._read = ""
        self._open: int | None = None
        self._spans: list[range] = []

    def step(self, generated: Sequence[int], count: int) -> None:
        """Read the last `count` of the generated tokens, which one step committed."""
        for end in range(len(generated) - count + 1, len(generated) + 1):
            self._feed(self._settled(self._decode(generated[:end])), end)

    def _settled(self, text: str) -> str:
        """The text up to a stop string, which may have ended the answer, or up to where one may have begun."""
        result = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        return settled(text, self._stops) if result is None else text[:result]

    def finish(self, text: str, count: int) -> tool_calls.ParsedCalls:
        """The calls of the answer's whole `text`, made of `count` tokens."""
        if not text.startswith(self._read):
            return tool_calls.ParsedCalls(problem=CHANGED)
        self._feed(text, count)
        if self._open is not None:
            self._spans.append(range(self._open, count))
            self._open = None
        return self._parser.finish()

    def facts(self, text: str, count: int) -> dict[str, Any]:
        """The rest of the record's fact `tools`, at the end of the answer."""
        mapping = tool_calls.calls_to_json(self.finish(text, count))
        spans = [[span.start, span.stop] for span in self._spans]
        return {"parser": tool_calls.parser_name(), "template": dict(self._template), **mapping, "spans": spans}

    def _feed(self, text: str, end: int) -> None:
        """Read on to the end of a text, whose last token is number `end` from 1."""
        new = text[len(self._read) :] if text.startswith(self._read) else ""
        self._read += new
        for border in self._parser.feed(new):
            if self._open is not None:
                self._spans.append(range(self._open, end))
            self._open = end - 1 if border is tool_calls.Border.OPEN else None


def offer_facts(offer: ToolOffer | None, template: tool_calls.ResponseTemplate | None) -> dict[str, Any]:
    """The fact `tools` before anything is read; empty for a request that offers none."""
    if offer is None:
        return {}
    read: dict[str, Any] = {}
    if offer.choice == "none":
        read = {"calls": []}
    elif template is None:
        read = {"unread": NO_TEMPLATE}
    return {"tools": {**tool_calls.offer_to_json(offer), **read}}


def is_read(offer: ToolOffer | None, template: tool_calls.ResponseTemplate | None) -> bool:
    """True if calls are looked for in the answer."""
    return offer is not None and offer.choice != "none" and template is not None
