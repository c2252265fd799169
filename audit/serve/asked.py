"""A request's body as values, on both routes.

What is not known is refused, never dropped, apart from fields that change no answer.

Reads the fields of a request's body strictly: a wrong type is refused, an unknown field too.

null counts as absent, as at OpenAI.

Messages and tools in OpenAI's form, as a chat template takes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.serve.limits import ServeLimits
from audit.serve.refusals import ApiRefusal, invalid
from engine.backends.interface import Prompt
from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintSpec, constraint_of
from engine.core.types import ToolOffer

ROLES: Final[Mapping[str, str]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Roles of a conversation, and what templates call them."""
MOST_TOOLS: Final = 128


def messages_of(given: Any) -> tuple[Mapping[str, Any], ...]:
    """The messages; raises ApiRefusal."""
    if not isinstance(given, list) or not given:
        raise invalid("messages: not a list of at least one message", "messages")
    return tuple(_message(each, f"messages[{at}]") for at, each in enumerate(given))


def _message(given: Any, where: str) -> Mapping[str, Any]:
    role = given.get("role") if isinstance(given, Mapping) else None
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}: its role is none of {', '.join(ROLES)}", where)
    made: dict[str, Any] = {"role": ROLES[role], "content": _content(given.get("content"), where)}
    calls = given.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise invalid(f"{where}: tool_calls is no list", where)
        made["tool_calls"] = [_call(each, where) for each in calls]
    for name in ("name", "tool_call_id"):
        if isinstance(given.get(name), str):
            made[name] = given[name]
    return made


def _content(given: Any, where: str) -> str:
    """The text of a message, which may come in parts."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else [None]
    texts = [each.get("text") if isinstance(each, Mapping) and each.get("type") == "text" else None for each in parts]
    known = [text for text in texts if isinstance(text, str)]
    if len(known) < len(parts):
        raise invalid(f"{where}: content is neither a text nor a list of parts of type text", where, "unsupported")
    return "".join(known)


def _call(given: Any, where: str) -> Mapping[str, Any]:
    """A call of an earlier answer; templates write arguments from values, not from their JSON."""
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise invalid(f"{where}: a tool call without the name of its function", where)
    arguments = function.get("arguments", "{}")
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        raise invalid(f"{where}: the arguments of {function['name']} are no JSON", where) from None
    return {"id": str(given.get("id", "")), "type": "function", "function": {**function, "arguments": value}}


def offer_of_body(fields: BodyFields) -> ToolOffer | None:
    """The tools that a request offers, with its choice; None without tools. Raises ApiRefusal."""
    tools, choice = fields.raw("tools"), fields.raw("tool_choice")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice: the request offers no tools", "tool_choice")
        return None
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS or not all(map(_is_tool, tools)):
        raise invalid(f"tools: not a list of at most {MOST_TOOLS} functions with names", "tools")
    return ToolOffer(tuple(tools), _choice(choice, [tool["function"]["name"] for tool in tools]))


def _is_tool(given: Any) -> bool:
    if not isinstance(given, Mapping) or given.get("type") != "function":
        return False
    function = given.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        return False
    return isinstance(function.get("parameters") or {}, Mapping)


def _choice(given: Any, names: list[str]) -> str | Mapping[str, str]:
    if given is None:
        return "auto"
    if given in ("auto", "none", "required"):
        return str(given)
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in names:
        raise invalid("tool_choice: not auto, none, required or the name of an offered function", "tool_choice")
    return {"name": name}


class BodyFields:
    """The fields of one body; all methods raise ApiRefusal."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, Mapping):
            raise invalid("the body is no JSON object")
        self._body = body
        self._left = {name for name, value in body.items() if value is not None}

    def raw(self, name: str) -> Any:
        """The value as it is; None if absent."""
        self._left.discard(name)
        return self._body.get(name)

    def text(self, name: str) -> str | None:
        """A text."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, "a text")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _wrong(name, "true or false")
        return value

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number in [low, high]; None if absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _wrong(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A number in [low, high]."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A text or a list of texts, none of them empty."""
        value = self.raw(name)
        listed = [value] if isinstance(value, str) else value
        if listed is None:
            return ()
        if not isinstance(listed, list) or len(listed) > most or not all(isinstance(x, str) and x for x in listed):
            raise _wrong(name, f"a text or a list of at most {most} texts, none empty")
        return tuple(listed)

    def ids(self, name: str) -> tuple[int, ...]:
        """A list of token ids."""
        value = self.raw(name)
        if value is None:
            return ()
        if not token_ids(value):
            raise _wrong(name, "a list of token ids")
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """A JSON object."""
        value = self.raw(name)
        if value is not None and not isinstance(value, Mapping):
            raise _wrong(name, "an object")
        return value

    def fixed(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Fields of which one value means what the server does anyway; others are refused."""
        for name, values in allowed.items():
            value = self.raw(name)
            if value is not None and value not in values:
                raise invalid(f"{name}: this server has only {' and '.join(map(repr, values))}", name, "unsupported")

    def ignore(self, names: Collection[str]) -> None:
        """Fields that change no answer."""
        self._left -= set(names)

    def end(self) -> None:
        """Refuse what nobody read."""
        if self._left:
            name = min(self._left)
            raise invalid(f"{name}: this server has no such parameter; leave it out", name, "unknown_parameter")


def token_ids(value: Any) -> bool:
    """True for a list of token ids."""
    return isinstance(value, Sequence) and all(type(each) is int and 0 <= each < 2**31 for each in value)


def _wrong(name: str, wanted: str) -> ApiRefusal:
    return invalid(f"{name}: not {wanted}", name)


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
    prompt = Prompt(messages, offer.tools if offer else (), None, offer.choice if offer else "auto")
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
        if all(isinstance(each, str) for each in given):
            return tuple(Prompt(text=each) for each in given)
        if all(isinstance(each, list) and each and token_ids(each) for each in given):
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
