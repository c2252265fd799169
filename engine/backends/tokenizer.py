"""Prompts as tokens and tokens as text, by a model's own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.backends.chat_text import chat_text
from engine.backends.interface import Prompt, PromptTokenizer
from engine.backends.spelling import spelling_of
from engine.core.errors import ModelError


def tokens_by(tokenizer: Any, source: str) -> PromptTokenizer:
    """A transformers tokenizer with its chat template; messages name `source`."""

    def encode(prompt: Prompt) -> list[int]:
        if prompt.text is not None:
            return list(tokenizer(prompt.text)["input_ids"])
        if not tokenizer.chat_template:
            raise ModelError(f"{source}: no chat template; use prompts with raw text (key prompt)")
        template: dict[str, Any] = {"tools": list(prompt.tools)} if prompt.tools else {}
        if prompt.tools and prompt.tool_choice != "auto":
            template["tool_choice"] = prompt.tool_choice
        text = chat_text(tokenizer, prompt.messages, source, add_generation_prompt=True, **template)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))

    def write(messages: Sequence[Mapping[str, Any]]) -> str:
        return chat_text(tokenizer, messages, source)

    return PromptTokenizer(
        encode,
        decode,
        getattr(tokenizer, "response_template", None),
        lambda vocabulary: spelling_of(tokenizer, vocabulary),
        write if getattr(tokenizer, "chat_template", None) else None,
    )
