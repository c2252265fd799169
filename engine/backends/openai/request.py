"""The body of a request.

Every sampling parameter that the server knows is sent, also those that are off: servers and models bring defaults of
their own. One that the server does not know is refused, never dropped.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.backends.interface import Prompt
from engine.backends.openai.settings import ROUTES, SEEDED, Api, OpenAISettings
from engine.backends.openai.structured import keys_of
from engine.core.errors import InvalidRequest
from engine.core.types import Request, SamplingParams

OFF = SamplingParams()
TEMPLATE: Final = "chat_template_kwargs"
"""Key of the arguments of the chat template."""
SHARED = "shared"
"""The salt of arms that must draw the same numbers as their baseline."""


def path(settings: OpenAISettings) -> str:
    """The route."""
    return ROUTES[settings.api]


def body_of(
    settings: OpenAISettings,
    model: str,
    prompt: Prompt,
    ids: Sequence[int] | None,
    request: Request,
    salt: str,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """The body without the streaming keys; `ids` are the prompt's tokens, None if unknown, `more` keys of the arm."""
    dialect = settings.dialect
    seed = {dialect.seed: seed_of(request, salt, dialect.seed_bits)} if settings.seeds == SEEDED else {}
    form = keys_of(settings, request.sampling.structured)
    sampling = _sampling(settings, request.sampling)
    if settings.api is Api.GENERATE:
        asked = {"text": prompt.text} if ids is None else {"input_ids": list(ids)}
        parameters = {"sampling_params": {**sampling, **form, **seed}}
        return {**asked, **parameters, **native_logprobs(settings), **settings.body, **more}
    asked = (
        _chat(settings, prompt)
        if settings.api is Api.CHAT
        else {"prompt": prompt.text if ids is None else list(ids), **_logprobs(settings)}
    )
    special = {"return_token_ids": True} if dialect.token_ids else {}
    fixed = dialect.fixed
    # the prompt holds those of the body too
    own = {key: value for key, value in settings.body.items() if key != TEMPLATE or settings.api is not Api.CHAT}
    return {"model": model, **asked, **form, **sampling, **fixed, **seed, **special, **own, **more}


def streamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a streamed request, with token counts at the end; SGLang's own route has them in every part."""
    counted = {} if "sampling_params" in body else {"stream_options": {"include_usage": True}}
    return {**body, "stream": True, **counted}


def seed_of(request: Request, salt: str, bits: int) -> int:
    """The server's seed: a digest of our seed and stream, and of a salt that keeps arms apart."""
    name = f"{request.sampling.seed}/{request.stream}/{salt}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> (64 - bits)


def _chat(settings: OpenAISettings, prompt: Prompt) -> dict[str, Any]:
    told: dict[str, Any] = {"messages": _messages(prompt.messages), **_logprobs(settings)}
    if prompt.template:
        told[TEMPLATE] = dict(prompt.template)
    if prompt.tools:
        told["tools"] = [_tool(tool) for tool in prompt.tools]
    if prompt.tools and (choice := choice_of(settings, prompt)) is not None:
        told["tool_choice"] = choice
    if prompt.tools and settings.parallel_tool_calls is not None:
        told["parallel_tool_calls"] = settings.parallel_tool_calls
    if settings.response_format is not None:
        told["response_format"] = settings.response_format
    return told


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages in OpenAI's form; prompts may give calls by name and arguments alone, and results in their order."""
    written, waiting, count = [], list[str](), 0
    for message in messages:
        made = dict(message)
        if made.get("tool_calls"):
            made["tool_calls"] = [_call(call, count + at) for at, call in enumerate(made["tool_calls"])]
            count += len(made["tool_calls"])
            waiting = [call["id"] for call in made["tool_calls"]]
        if made.get("role") == "tool" and "tool_call_id" not in made and waiting:
            made["tool_call_id"] = waiting.pop(0)
        written.append(made)
    return written


def _call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = dict(call.get("function", call))
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = json.dumps(function.get("arguments", {}), ensure_ascii=False)
    function.pop("id", None)
    return {"id": str(call.get("id", f"call_{number}")), "type": "function", "function": function}


def choice_of(settings: OpenAISettings, prompt: Prompt) -> Any:
    """The tool choice in OpenAI's form: the prompt's own, else the arm's; None leaves it to the server."""
    if prompt.tool_choice == "auto":
        return settings.tool_choice
    if isinstance(prompt.tool_choice, str):
        return prompt.tool_choice
    return {"type": "function", "function": {"name": prompt.tool_choice["name"]}}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form; prompts may name the function alone."""
    return dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}


def _logprobs(settings: OpenAISettings) -> dict[str, Any]:
    if not settings.logprobs:
        return {}
    if settings.api is Api.CHAT or settings.dialect.flagged:
        return {"logprobs": True, "top_logprobs": settings.logprobs}
    return {"logprobs": settings.logprobs}


def native_logprobs(settings: OpenAISettings) -> dict[str, Any]:
    """Keys of SGLang's own route; log-probabilities begin behind the prompt."""
    scores = {"return_logprob": True, "top_logprobs_num": settings.logprobs, "logprob_start_len": -1}
    asked = {**scores, "return_text_in_logprobs": True} if settings.logprobs else {}
    return {**asked, "return_prompt_token_ids": True}


def _sampling(settings: OpenAISettings, sampling: SamplingParams) -> dict[str, Any]:
    length = "max_tokens" if settings.api is Api.COMPLETIONS else settings.dialect.max_tokens
    told: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        length: sampling.max_new_tokens,
    }
    if sampling.stop:
        told["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        told["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    for ours, theirs in settings.dialect.extras.items():
        value = getattr(sampling, ours)
        if value == getattr(OFF, ours):
            value = settings.dialect.off.get(ours, value)
        told[theirs] = list(value) if isinstance(value, tuple) else value
    return told


COUNTING: Final = ("presence_penalty", "frequency_penalty")
"""Parameters that a suite counts over the answer alone."""


def require_known(settings: OpenAISettings, name: str, sampling: SamplingParams) -> None:
    """Refuse parameters that this kind of server lacks.

    Raises:
        InvalidRequest: names the parameter and the servers that know it.
    """
    known = {*settings.dialect.extras, "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"}
    known |= {"stop", "max_new_tokens", "seed", "structured"}
    for ours in SamplingParams.__dataclass_fields__:
        if ours in COUNTING and settings.dialect.counts_prompt and getattr(sampling, ours):
            raise InvalidRequest(
                f"{name}: a server of kind {settings.server} has no {ours} of the answer alone, it counts the prompt's "
                "tokens too; remove it, or use repetition_penalty"
            )
        if ours not in known and getattr(sampling, ours) != getattr(OFF, ours):
            mend = "no server takes token ids for it" if ours == "bad_words" else "or set server to a kind that has it"
            raise InvalidRequest(f"{name}: a server of kind {settings.server} has no {ours}; remove it; {mend}")
    try:
        keys_of(settings, sampling.structured)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error}") from error
