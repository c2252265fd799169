"""Formats of one JSON object a line, or one array of them: conversations, requests, an evaluation's samples."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from audit.suite.traffic.conversation import asked, messages_of, requested
from audit.suite.traffic.source import TrafficFile, TrafficRow, parsed
from audit.text.documents import decode_text
from audit.text.unsafe import quoted

Convert = Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]


def converted(file: TrafficFile, convert: Convert) -> Iterator[TrafficRow]:
    """The rows of each record, by what `convert` makes of it; its ValueError names what is wrong."""
    text = decode_text(str(file.path), file.raw)
    values: Iterable[tuple[int, Any]]
    if text.lstrip().startswith("["):
        values = enumerate(parsed(file, 1, text), 1)
    else:
        # not str.splitlines: it also splits at U+2028 and similar, which JSON text may contain
        lines = enumerate(text.split("\n"), 1)
        values = ((number, parsed(file, number, line)) for number, line in lines if line.strip())
    for number, record in values:
        if not isinstance(record, Mapping):
            raise file.error(number, f"{quoted(json.dumps(record)[:60])} is no JSON object")
        try:
            for row in convert(record):
                yield TrafficRow(number, row, record)
        except ValueError as error:
            raise file.error(number, str(error)) from error


def _value(record: Mapping[str, Any], *keys: str) -> Any:
    key = next((key for key in keys if key in record), None)
    if key is None:
        raise ValueError(f"no key {' or '.join(keys)}; there: {', '.join(map(quoted, record))}")
    return record[key]


def chats(file: TrafficFile) -> Iterator[TrafficRow]:
    """Conversations: `messages` as OpenAI has them, or `conversations` as ShareGPT has them."""
    name = file.columns.get("messages")

    def convert(record: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        tools = {"tools": record["tools"]} if record.get("tools") else {}
        messages = asked(_value(record, *((name,) if name else ("messages", "conversations"))))
        yield {"id": record.get("id"), "messages": messages, **tools}

    return converted(file, convert)


def requests(file: TrafficFile) -> Iterator[TrafficRow]:
    """Requests in the form of OpenAI's batch files, which `audit serve` and `audit probe` write too."""

    def convert(record: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        if "response" in record:
            raise ValueError("this is the output of a batch; name the file of its input")
        return ({"id": record.get("custom_id"), **row} for row in requested(_value(record, "body")))

    return converted(file, convert)


def lm_eval_samples(file: TrafficFile) -> Iterator[TrafficRow]:
    """Samples of lm-evaluation-harness (`--log_samples`): the contexts of each document, each once."""

    def convert(record: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        given = _value(record, "arguments")
        called = given.values() if isinstance(given, Mapping) else given
        if not isinstance(given, Mapping | list) or not all(isinstance(one, Mapping | list) and one for one in called):
            raise ValueError("arguments has no calls of the model")
        contexts = [one["arg_0"] if isinstance(one, Mapping) else one[0] for one in called]
        # a context that a chat template's client gets is JSON inside a list of one
        texts = [context[0] if isinstance(context, list) else context for context in contexts]
        return ({"id": str(record.get("doc_id")), **_context(text)} for text in dict.fromkeys(texts) if text)

    return converted(file, convert)


def _context(text: Any) -> dict[str, Any]:
    if not isinstance(text, str):
        raise ValueError("a context is no text; tasks with images cannot be audited")
    try:
        value = json.loads(text)
    except ValueError:
        return {"prompt": text}
    chat = isinstance(value, list) and value and all(isinstance(item, Mapping) and "role" in item for item in value)
    return {"messages": messages_of(value)} if chat else {"prompt": text}
