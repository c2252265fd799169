"""Logs of Inspect (`.eval`, `.json`), read by its own interface: the messages that the model answered last."""

from collections.abc import Iterator, Mapping
from typing import Any

from audit.errors import needs
from audit.suite.traffic.conversation import asked
from audit.suite.traffic.source import TrafficFile, TrafficRow


def samples(file: TrafficFile) -> Iterator[TrafficRow]:
    """The samples of the first epoch, since the others repeat them."""
    with needs("inspect"):
        from inspect_ai.log import read_eval_log
    try:
        log = read_eval_log(str(file.path), resolve_attachments=True)
    except Exception as error:  # it raises whatever its parsers raise
        raise file.error(None, f"Inspect cannot read it ({type(error).__name__})") from error
    for number, sample in enumerate(log.samples or (), 1):
        if sample.epoch != 1:
            continue
        record = sample.model_dump(mode="json", include={"id", "metadata", "input", "messages", "target"})
        record["task"] = log.eval.task
        spoken = record["messages"] or record["input"]
        messages = [{"role": "user", "content": spoken}] if isinstance(spoken, str) else list(map(_message, spoken))
        try:
            yield TrafficRow(number, {"id": sample.id, "messages": asked(messages)}, record)
        except ValueError as error:
            raise file.error(number, f"sample {sample.id}: {error}") from error


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its calls in OpenAI's form."""
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["function"], "arguments": call["arguments"]}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls or None}
