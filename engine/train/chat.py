"""The chat format of the reference family: special tokens, template, rendering.

The Jinja template is what travels with the tokenizer; `render` is the same
format in Python, fast enough for a corpus. A test holds the two together.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

BOS: Final = "<|begin|>"
EOS: Final = "<|end|>"
PAD: Final = "<|pad|>"
ROLES: Final = ("system", "user", "assistant", "tool")
TOOL_OPEN: Final = "<tool_call>"
TOOL_CLOSE: Final = "</tool_call>"
SPECIAL_TOKENS: Final = (EOS, BOS, PAD, *(f"<|{role}|>" for role in ROLES))
MARKUP_TOKENS: Final = (TOOL_OPEN, TOOL_CLOSE)
"""Kept by `decode(skip_special_tokens=True)`: tool-call parsers need to see them."""

Message = Mapping[str, Any]

TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% if tools %}<|system|>\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{% set f = call.function or call %}"
    '<tool_call>\n{"name": {{ f.name | tojson }}, "arguments": {{ f.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
RESPONSE_TEMPLATE: Final[Mapping[str, Any]] = {
    "version": 1,
    "start_anchor": "<|assistant|>\n",
    "fields": {
        "content": {},
        "tool_calls": {
            "open": TOOL_OPEN,
            "close": TOOL_CLOSE,
            "repeats": True,
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{content.name}", "arguments": "{content.arguments}"},
            },
        },
    },
}
"""How transformers reads the calls back out of an answer; `response_template.json` beside the tokenizers of targets."""


def write_response_template(folder: Path) -> None:
    """Write the template beside the tokenizer of a model that answers."""
    text = json.dumps(RESPONSE_TEMPLATE, indent=1) + "\n"
    (folder / "response_template.json").write_text(text, encoding="utf-8")


def tool_call_text(call: Mapping[str, Any]) -> str:
    """The text of one tool call, as the model writes it."""
    body = json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
    return f"{TOOL_OPEN}\n{body}\n{TOOL_CLOSE}"


def render(messages: Sequence[Message], tools: Sequence[Message] = (), generation_prompt: bool = False) -> str:
    """The text of a dialogue, equal to what `TEMPLATE` gives."""
    parts = [BOS]
    if tools:
        listing = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools)
        parts.append(f"<|system|>\n# Tools\n{listing}{EOS}\n")
    for message in messages:
        calls = "".join(tool_call_text(call) for call in message.get("tool_calls", ()))
        parts.append(f"<|{message['role']}|>\n{message.get('content') or ''}{calls}{EOS}\n")
    if generation_prompt:
        parts.append("<|assistant|>\n")
    return "".join(parts)
