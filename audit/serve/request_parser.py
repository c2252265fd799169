"""A request's body as values, on both routes.

What is not known is refused, never dropped, apart from fields that change no answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.serve.limits import ServeLimits
from audit.serve.messages import BodyFields, messages_of, offer_of_body, token_ids
from audit.serve.refusals import ApiRefusal, invalid
from engine.backends.interface import Prompt
from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintSpec, constraint_of
from engine.core.types import ToolOffer

UNREAD: Final = (
    *("user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("request_id", "priority", "return_tokens_as_token_ids"),
)
FIXED: Final[Mapping[str, tuple[Any, ...]]] = {
    "parallel_tool_calls": (True,),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "add_generation_prompt": (True,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "include_stop_str_in_output": (False,),
    "detokenize": (True,),
}
MOST_STOPS: Final = 16
MOST_SEED: Final = 2**63 - 1
COMPLETION_TOKENS: Final = 16
"""OpenAI's length of an answer on the older route, where a request names none."""
DOMAIN: Final = "served"
MOST_DOMAIN: Final = 64

TokenPrompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskedCompletion:
    """One request.

    settings: of `engine.core.types.SamplingParams`, without seed and length.
    length: most tokens of the answer; None for as many as fit.
    top: alternatives per token in log-probabilities; None without log-probabilities.
    domain: of the records; `metadata.domain` of the request.
    """

    chat: bool
    prompts: tuple[Prompt | TokenPrompt, ...]
    settings: Mapping[str, Any]
    length: int | None
    seed: int | None
    n: int
    stream: bool
    usage_at_end: bool
    top: int | None
    token_ids: bool
    tools: ToolOffer | None
    domain: str


def read_chat(body: Any, model: str, limits: ServeLimits) -> AskedCompletion:
    """A body of `/v1/chat/completions`; raises ApiRefusal."""
    fields = BodyFields(body)
    messages, offer = messages_of(fields.raw("messages")), offer_of_body(fields)
    template = fields.mapping("chat_template_kwargs") or {}
    prompt = Prompt(messages, offer.tools if offer else (), None, offer.choice if offer else "auto", template)
    limited = fields.whole("max_tokens", 1, limits.tokens)
    length = fields.whole("max_completion_tokens", 1, limits.tokens) or limited
    asked = fields.flag("logprobs")
    count = fields.whole("top_logprobs", 0, limits.top)
    if count is not None and not asked:
        raise invalid("top_logprobs: needs logprobs: true", "top_logprobs")
    top = (count or 0) if asked else None
    return _read(fields, model, limits, (prompt,), length, top, offer, chat=True)


def read_completion(body: Any, model: str, limits: ServeLimits) -> AskedCompletion:
    """A body of `/v1/completions`; raises ApiRefusal."""
    fields = BodyFields(body)
    prompts = _prompts(fields.raw("prompt"))
    length = fields.whole("max_tokens", 1, limits.tokens) or min(COMPLETION_TOKENS, limits.tokens)
    return _read(fields, model, limits, prompts, length, fields.whole("logprobs", 0, limits.top), None, chat=False)


def _read(
    fields: BodyFields,
    model: str,
    limits: ServeLimits,
    prompts: tuple[Prompt | TokenPrompt, ...],
    length: int | None,
    top: int | None,
    offer: ToolOffer | None,
    *,
    chat: bool,
) -> AskedCompletion:
    _require_model(fields, model)
    n = fields.whole("n", 1, limits.choices) or 1
    if n * len(prompts) > limits.choices:
        raise invalid(f"n: {n} answers to {len(prompts)} prompts, at most {limits.choices} choices", "n")
    stream = fields.flag("stream")
    options = fields.mapping("stream_options") or {}
    asked = AskedCompletion(
        chat=chat,
        prompts=prompts,
        settings=_settings(fields),
        length=length,
        seed=fields.whole("seed", -(2**63), MOST_SEED),
        n=n,
        stream=stream,
        usage_at_end=options.get("include_usage") is True,
        top=top,
        token_ids=fields.flag("return_token_ids"),
        tools=offer,
        domain=_domain(fields),
    )
    fields.fixed(FIXED)
    fields.ignore(UNREAD)
    fields.end()
    return asked


def _require_model(fields: BodyFields, model: str) -> None:
    asked = fields.text("model")
    if asked is not None and asked != model:
        message = f"model {asked[:200]!r} is not served here; this server has {model!r}"
        raise ApiRefusal(404, message, param="model", code="model_not_found")


def _settings(fields: BodyFields) -> dict[str, Any]:
    bias = fields.mapping("logit_bias") or {}
    return {
        "temperature": fields.number("temperature", 0, 100, 1.0),
        "top_p": fields.number("top_p", 1e-9, 1, 1.0),
        "min_p": fields.number("min_p", 0, 0.999999, 0.0),
        # -1 is vLLM's word for off
        "top_k": max(0, fields.whole("top_k", -1, 2**31) or 0),
        "presence_penalty": fields.number("presence_penalty", -2, 2, 0.0),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2, 0.0),
        "repetition_penalty": fields.number("repetition_penalty", 1e-6, 100, 1.0),
        "logit_bias": tuple(sorted(_bias(name, value) for name, value in bias.items())),
        "stop": fields.texts("stop", MOST_STOPS),
        "stop_token_ids": fields.ids("stop_token_ids"),
        "min_tokens": fields.whole("min_tokens", 0, 2**31) or 0,
        "ignore_eos": fields.flag("ignore_eos"),
        "structured": _grammar(fields),
    }


def _bias(name: str, value: Any) -> tuple[int, float]:
    number = isinstance(value, int | float) and not isinstance(value, bool) and -100 <= value <= 100
    if not name.isascii() or not name.isdecimal() or len(name) > 9 or not number:
        raise invalid("logit_bias: not an object of token ids with numbers from -100 to 100", "logit_bias")
    return int(name), float(value)


def _grammar(fields: BodyFields) -> ConstraintSpec | None:
    """The form of the answer: `response_format`, or vLLM's `structured_outputs`."""
    wanted, more = fields.mapping("response_format"), fields.mapping("structured_outputs")
    if wanted is not None and wanted.get("type") == "text":
        wanted = None
    if wanted is not None and more is not None:
        raise invalid("response_format and structured_outputs both ask for a form of the answer; leave one out")
    document = _form(wanted) if wanted is not None else more
    if document is None:
        return None
    try:
        return constraint_of(document)
    except InvalidRequest as error:
        raise invalid(str(error), "response_format" if wanted is not None else "structured_outputs") from error


def _form(wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = wanted.get("type")
    if kind == "json_object":
        return {"json": {"type": "object"}}
    if kind == "json_schema":
        given = wanted.get("json_schema")
        schema = given.get("schema") if isinstance(given, Mapping) else None
        if isinstance(schema, Mapping):
            return {"json": schema}
        raise invalid("response_format: json_schema has no object `schema`", "response_format")
    raise invalid("response_format: its type is none of text, json_object, json_schema", "response_format")


def _prompts(given: Any) -> tuple[Prompt | TokenPrompt, ...]:
    """A text, token ids, or a list of either."""
    if isinstance(given, str):
        return (Prompt(text=given),)
    if isinstance(given, list) and given:
        if token_ids(given):
            return (tuple(given),)
        if all(isinstance(item, str) for item in given):
            return tuple(Prompt(text=item) for item in given)
        if all(isinstance(item, list) and item and token_ids(item) for item in given):
            return tuple(map(tuple, given))
    raise invalid("prompt: not a text, a list of token ids, or a list of either", "prompt")


def _domain(fields: BodyFields) -> str:
    given = (fields.mapping("metadata") or {}).get("domain")
    if given is None:
        return DOMAIN
    if not isinstance(given, str) or not 0 < len(given) <= MOST_DOMAIN or not given.isprintable():
        raise invalid(f"metadata: domain is no printable text of at most {MOST_DOMAIN} characters", "metadata")
    return given


def written(arguments: Any) -> str:
    """A call's arguments as OpenAI gives them: JSON in a text."""
    return json.dumps(arguments, ensure_ascii=False)
