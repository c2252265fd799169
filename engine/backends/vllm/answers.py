"""Facts of an answer that follow from its tokens and its text alone: masks computed again, and tool calls.

vLLM in a process of ours has no tool parser; its server has. The calls on record are read from the committed tokens by
the parser that transformers ships, as the built-in engine reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.second_decoding import SecondDecoding
from engine.backends.vllm.second_masks import SecondMasks
from engine.core.types import Request
from engine.decode.call_reader import CallReader, is_read, offer_facts
from engine.record.tool_calls import ResponseTemplate


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What is needed to read the answers of one engine.

    template: how the target's family writes tool calls.
    decode: from a prompt and the tokens after it to the tokens' text.
    """

    masks: SecondMasks
    template: ResponseTemplate | None
    decode: Callable[[Sequence[int], Sequence[int]], SecondDecoding | None]

    def facts(self, request: Request, tokens: Sequence[int], text: str) -> Mapping[str, Any]:
        """The facts of one answer."""
        return {**self.masks.account(request.sampling, tokens, text), **self._calls(request, tokens, text)}

    def _calls(self, request: Request, tokens: Sequence[int], text: str) -> dict[str, Any]:
        found = offer_facts(request.tools, self.template)
        if not is_read(request.tools, self.template):
            return found
        assert self.template is not None

        def decoded(generated: Sequence[int]) -> str:
            text = self.decode(request.prompt, generated)
            return "" if text is None else text.text

        reader = CallReader(request, self.template, decoded)
        for count in range(1, len(tokens) + 1):
            reader.step(tokens[:count], 1)
        return {"tools": {**found["tools"], **reader.facts(text, len(tokens))}}
