"""Messages and request bodies of other tools, as the messages of a prompt row."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from audit.text.unsafe import quoted

ROLES: Final = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "developer": "system",
    **{"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"},
    **{"observation": "tool", "function": "tool"},
}
KEPT: Final = ("name", "tool_calls", "tool_call_id")
TEXTS: Final = ("text", "input_text", "output_text")
OFFERED: Final = ("tools", "tool_choice", "chat_template_kwargs")


def messages_of(value: Any) -> list[dict[str, Any]]:
    """Messages of OpenAI's or ShareGPT's form, contents as text.

    Raises:
        ValueError: another form, or content that is no text.
    """
    if not isinstance(value, list) or not value or not all(isinstance(item, Mapping) for item in value):
        raise ValueError("no list of messages")
    return [_message(item) for item in value]


def asked(value: Any) -> list[dict[str, Any]]:
    """The messages that the model has to answer: those of a logged conversation without the answer at its end."""
    messages = messages_of(value)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise ValueError("no message before the first answer")
    return messages


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    said = item.get("role", item.get("from"))
    if said not in ROLES:
        raise ValueError(f"a message has the role {quoted(str(said))}, which is none of {', '.join(ROLES)}")
    kept = {key: item[key] for key in KEPT if item.get(key) is not None}
    return {"role": ROLES[said], "content": _text(item.get("content", item.get("value"))), **kept}


def _text(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") not in TEXTS or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ValueError(f"content of type {quoted(str(kind))} is no text; remove the record")
    return "".join(part["text"] for part in parts)


def requested(body: Any) -> Iterator[dict[str, Any]]:
    """The rows of a request's body: of chat completions, completions or responses, one for each prompt.

    Raises:
        ValueError: the body has no prompt of text or token ids.
    """
    if not isinstance(body, Mapping):
        raise ValueError("the body is no JSON object")
    offered = {key: _chosen(body[key]) if key == "tool_choice" else body[key] for key in OFFERED if body.get(key)}
    given = body.get("messages", body.get("input"))
    if "messages" in body or isinstance(given, list):
        instructions = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
        yield {"messages": messages_of([*instructions, *given] if isinstance(given, list) else given), **offered}
        return
    prompt = body.get("prompt", given)
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    for one in prompt if several else [prompt]:
        if isinstance(one, str) and given is not None:
            yield {"messages": [{"role": "user", "content": one}], **offered}
        elif isinstance(one, str) and one:
            yield {"prompt": one}
        elif isinstance(one, list) and one and all(isinstance(token, int) for token in one):
            yield {"tokens": one}
        else:
            raise ValueError(f"the body has no messages, prompt or input; its keys are {', '.join(map(quoted, body))}")


def _chosen(choice: Any) -> Any:
    """A tool choice as prompt rows have it."""
    return {"name": choice["function"]["name"]} if isinstance(choice, Mapping) and "function" in choice else choice
