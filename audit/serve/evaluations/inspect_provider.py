"""The provider `specaudit` of Inspect: `--model specaudit/SOURCE -M draft=SOURCE`.

The metadata of each output, `audit`, names the run, the arm and the request of its record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    GenerateConfig,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo

from audit.errors import UserError
from audit.serve.evaluations.recorded_model import RecordedAnswer, recorded_model

DOMAIN: Final = "inspect"
PASSED: Final[Mapping[str, str]] = {
    **{name: name for name in ("max_tokens", "top_p", "top_k", "temperature", "frequency_penalty")},
    **{name: name for name in ("presence_penalty", "seed", "logprobs", "top_logprobs", "parallel_tool_calls")},
    "stop_seqs": "stop",
    "num_choices": "n",
}
"""Settings that OpenAI's API has too, and their names there."""
READ: Final = ("logit_bias", "response_schema")
WITHOUT_EFFECT: Final = (
    *("max_retries", "timeout", "attempt_timeout", "stream_idle_timeout", "max_connections", "adaptive_connections"),
    *("system_message", "internal_tools", "max_tool_output", "cache_prompt", "cache", "fail_on_refusal", "batch"),
    *("extra_headers", "reasoning_history"),
)
"""Settings of connections, and those that Inspect itself follows."""
CHOICES: Final = {"any": "required", "auto": "auto", "none": "none"}
STOPS: Final = {"length": "max_tokens", "stop": "stop", "tool_calls": "tool_calls", "content_filter": "content_filter"}


@modelapi(name="specaudit")
class SpecauditAPI(ModelAPI):  # type: ignore[misc]  # the environment of the types has no inspect_ai
    """A model over the engine of `audit serve`."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        **options: Any,
    ) -> None:
        """Open the model with the options of `audit serve`. Raises UserError: a wrong option."""
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        self.recorded = recorded_model({"model": model_name, **options})

    async def aclose(self) -> None:
        """Close the run; the end of the process does it too."""
        self.recorded.close()

    def max_connections(self) -> int:
        """As many samples at once as the batch has rows."""
        return self.recorded.rows

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """An answer, with the names of its record.

        Raises:
            UserError: the request is refused, or a setting is not supported.
        """
        offer = {"tools": list(map(_tool, tools)), "tool_choice": _choice(tool_choice)} if tools else {}
        body = {"messages": list(map(_message, input)), **offer, **_settings(config)}
        return _output(await self.recorded.answer(body, DOMAIN, chat=True), self.model_name)


def _settings(config: GenerateConfig) -> dict[str, Any]:
    given = config.model_dump(exclude_none=True)
    unknown = [name for name in given if name not in (*PASSED, *READ, *WITHOUT_EFFECT)]
    if unknown:
        raise UserError(f"{unknown[0]}: the provider specaudit does not support this setting; leave it out")
    body = {PASSED[name]: value for name, value in given.items() if name in PASSED}
    if config.logit_bias is not None:
        body["logit_bias"] = {str(token): value for token, value in config.logit_bias.items()}
    if config.response_schema is not None:
        schema = config.response_schema.json_schema.model_dump(exclude_none=True, by_alias=True)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return body


def _message(message: ChatMessage) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if isinstance(message, ChatMessageTool):
        made["tool_call_id"] = message.tool_call_id
    return made


def _content(message: ChatMessage) -> str:
    if not isinstance(message.content, str) and any(part.type not in ("text", "reasoning") for part in message.content):
        raise UserError("the provider specaudit reads texts only; this sample has another kind of content")
    return str(message.text)


def _tool(tool: ToolInfo) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(exclude_none=True, by_alias=True)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    if isinstance(choice, ToolFunction):
        return {"type": "function", "function": {"name": choice.name}}
    return CHOICES[choice]


def _output(answer: RecordedAnswer, model: str) -> ModelOutput:
    document = answer.document
    usage = document["usage"]
    return ModelOutput(
        model=model,
        choices=[_completion(choice, model) for choice in document["choices"]],
        usage=ModelUsage(
            input_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            total_tokens=usage["total_tokens"],
        ),
        metadata={"audit": dict(answer.record)},
        response_id=document["id"],
    )


def _completion(choice: Mapping[str, Any], model: str) -> ChatCompletionChoice:
    message = choice["message"]
    calls = [_call(call) for call in message.get("tool_calls", ())]
    scores = choice["logprobs"]
    return ChatCompletionChoice(
        message=ChatMessageAssistant(
            content=message["content"] or "", tool_calls=calls or None, model=model, source="generate"
        ),
        stop_reason=STOPS[choice["finish_reason"]],
        logprobs=None if scores is None else Logprobs(content=scores["content"]),
    )


def _call(call: Mapping[str, Any]) -> ToolCall:
    function, arguments = call["function"], json.loads(call["function"]["arguments"])
    if isinstance(arguments, dict):
        return ToolCall(call["id"], function["name"], arguments)
    return ToolCall(call["id"], function["name"], {}, parse_error="the arguments are no JSON object")
