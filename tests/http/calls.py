"""Tool calls of a test server: read out of a text in the bundled family's form, and sent in parts.

Ways: `sound`; of a stream `cut` (arguments lose their end), `lost` (the last call does not come), `unnumbered`
(parts have no index), `nameless` (calls come without their name); of every answer `stop` (it ends with `stop`).
"""

import json
from pathlib import Path

import engine
from engine.core.types import ToolOffer
from engine.record.tool_calls import parse_calls

TEMPLATE = Path(engine.__file__).parent / "bundled" / "target" / "response_template.json"
SIZE = 7
"""Characters of arguments in one part."""


def read_calls(text, tools):
    """OpenAI's `tool_calls`."""
    found = parse_calls(text, json.loads(TEMPLATE.read_text(encoding="utf-8")), ToolOffer(tuple(tools)))
    return [
        {
            "id": f"call-{at}",
            "type": "function",
            "function": {"name": each.name, "arguments": json.dumps(each.arguments)},
        }
        for at, each in enumerate(found.calls)
    ]


def read_messages(messages):
    """Messages with the arguments of earlier calls as values, which the template takes."""
    read = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        made = [{**call, "arguments": json.loads(call["arguments"])} for call in calls]
        read.append({**message, **({"tool_calls": made} if made else {})})
    return tuple(read)


def streamed_calls(calls, way):
    """The deltas of a stream."""
    for at, call in enumerate(calls[:-1] if way == "lost" else calls):
        index = {} if way == "unnumbered" else {"index": at}
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        yield {**index, **call, "function": {} if way == "nameless" else {"name": name}}
        parts = [arguments[begin : begin + SIZE] for begin in range(0, len(arguments), SIZE)]
        for part in parts[:-1] if way == "cut" else parts:
            yield {**index, "function": {"arguments": part}}
