"""Faults of a service: the engine behind it may be right, and what reaches it or what it answers is not.

The connection of an arm at an endpoint builds a fault in: it changes requests as they leave and documents as they
arrive, so that a fault works at any server. A document is a whole answer or one part of a streamed one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Document = Mapping[str, Any]
LATER: Final = 4
"""The first request of an arm whose answer is another service's."""
DRAFTED: Final = ("num_draft_tokens", "draft_n", "spec_num_proposed_drafts")
APART: Final = "sampling_params"
PROMPTS: Final = ("prompt", "messages", "input_ids", "text")
SEEDS: Final = ("seed", "sampling_seed")
EVERY: Final = 3
"""Of so many parts of a stream, one is without its text."""


@dataclass(frozen=True, slots=True)
class AnswerPlace:
    """Number of the request in its arm, from 1, and of the document in its answer, from 0."""

    request: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class ServiceFault:
    """One bug of a service.

    upstream: repository and number of the bug that the fault re-creates, or `none known:` and the reason to include it.
    breaks: what no longer holds of the service: its identity, the form of its answers, its counts, or the request that
    it answers.
    body: the request that the engine is given.
    answer: the document that the client is given.
    place: of a request and one that was cancelled before it, the request that the engine is given.
    needs: what a request must have for an effect, in words; empty for any.
    """

    upstream: str
    breaks: str
    body: Callable[[Document], Document] = lambda body: body
    answer: Callable[[Document, AnswerPlace], Document] = lambda document, _place: document
    place: Callable[[Document, Document], Document] = lambda body, _left: body
    needs: str = ""


SOUND: Final = ServiceFault("none known: no fault", "nothing")


def _named(**fields: str) -> Callable[[Document, AnswerPlace], Document]:
    """Later answers with other fields beside their choices."""
    return lambda document, place: {**document, **fields} if place.request >= LATER else document


def _choices(change: Callable[[dict[str, Any], AnswerPlace], Document]) -> Callable[[Document, AnswerPlace], Document]:
    """Documents with every choice changed."""

    def answer(document: Document, place: AnswerPlace) -> Document:
        choices = [change(dict(choice), place) for choice in document.get("choices") or ()]
        return {**document, "choices": choices} if choices else document

    return answer


def _scores(entry: Document, listed: Document) -> Callable[[Document, AnswerPlace], Document]:
    """Choices whose tokens have other log-probabilities: `entry` for each in chats, `listed` for all in completions."""

    def change(choice: dict[str, Any], _place: AnswerPlace) -> Document:
        scores = choice.get("logprobs")
        if not scores:
            return choice
        if scores.get("content") is not None:
            return {**choice, "logprobs": {**scores, "content": [{**token, **entry} for token in scores["content"]]}}
        count = len(scores.get("tokens", ()))
        return {**choice, "logprobs": {**scores, **{key: [value] * count for key, value in listed.items()}}}

    return _choices(change)


def _asked(change: Callable[[Document], Document]) -> Callable[[Document], Document]:
    """Requests with other parameters, which SGLang's own route keeps apart."""

    def body(asked: Document) -> Document:
        inner = asked.get(APART)
        return change(asked) if inner is None else {**asked, APART: change(inner)}

    return body


def _without(*keys: str) -> Callable[[Document], Document]:
    return _asked(lambda body: {key: value for key, value in body.items() if key not in keys})


def _counted(document: Document, change: Callable[[dict[str, Any]], Document]) -> Document:
    """The document with its account of drafts changed, wherever a server keeps it."""
    inner = {key: _counted(value, change) for key, value in document.items() if isinstance(value, Mapping)}
    whole = {**document, **inner}
    return change(whole) if any(isinstance(whole.get(name), int) for name in DRAFTED) else whole


def _first_slot_counted(account: dict[str, Any]) -> Document:
    steps = account.get("num_spec_steps", account.get("spec_verify_ct", 1))
    return account | {name: account[name] + steps for name in DRAFTED if name in account}


def _block_used(document: Document, _place: AnswerPlace) -> Document:
    usage = document.get("usage")
    if not usage:
        return document
    return {**document, "usage": {**usage, "completion_tokens": usage.get("completion_tokens", 0) + 2}}


def _length_first(choice: dict[str, Any], _place: AnswerPlace) -> Document:
    stopped = choice.get("finish_reason") == "stop"
    return choice | ({"finish_reason": "length", "stop_reason": None} if stopped else {})


def _text_lost(choice: dict[str, Any], place: AnswerPlace) -> Document:
    if place.part % EVERY != EVERY - 1:
        return choice
    if choice.get("delta", {}).get("content"):
        return choice | {"delta": {**choice["delta"], "content": ""}}
    return choice | ({"text": ""} if place.part and choice.get("text") else {})


def _arguments_lost(choice: dict[str, Any], _place: AnswerPlace) -> Document:
    said = "delta" if "delta" in choice else "message"
    calls = choice.get(said, {}).get("tool_calls")
    if not calls:
        return choice
    nothing = "" if said == "delta" else "{}"
    emptied = [{**call, "function": {**call.get("function", {}), "arguments": nothing}} for call in calls[:1]]
    return choice | {said: {**choice[said], "tool_calls": [*emptied, *calls[1:]]}}


def _last_message_only(body: Document) -> Document:
    return {**body, "messages": body["messages"][-1:]} if len(body.get("messages", ())) > 1 else body


FALLBACK_ANSWERS: Final = ServiceFault("BerriAI/litellm#20177", "identity", answer=_named(model="fallback"))
"""A gateway's later answers are another model's, by their own account."""
BUILD_CHANGES: Final = ServiceFault(
    "none known: a rolling deployment replaces the service's instances one after another",
    "identity",
    answer=_named(system_fingerprint="other-build"),
)
"""Later answers have another fingerprint."""
PROVIDER_CHANGES: Final = ServiceFault(
    "none known: routers that send requests to the cheapest provider", "identity", answer=_named(provider="other")
)
"""Later answers name another provider."""
SCORES_LOST: Final = ServiceFault(
    "Pushkinist/rMLX#542, sgl-project/sglang#10660",
    "form",
    answer=_choices(lambda choice, _place: choice | {"logprobs": None}),
)
"""Speculative answers have no log-probabilities."""
SCORES_ZERO: Final = ServiceFault(
    "ggml-org/llama.cpp#27972, vllm-project/vllm#17876",
    "form",
    answer=_scores({"logprob": 0.0}, {"token_logprobs": 0.0}),
)
"""Every token's log-probability is 0."""
LISTS_LOST: Final = ServiceFault(
    "ggml-org/llama.cpp#27196", "form", answer=_scores({"top_logprobs": []}, {"top_logprobs": None})
)
"""The lists of likely tokens are empty."""
IDS_LOST: Final = ServiceFault(
    "none known: an option of the plain path that the speculative one was written without",
    "form",
    answer=_choices(lambda choice, _place: {key: value for key, value in choice.items() if key != "token_ids"}),
    needs="a server that names token ids",
)
"""Speculative answers do not name their tokens."""
BLOCK_USED: Final = ServiceFault("ikawrakow/ik_llama.cpp#2358, sgl-project/sglang#39826", "counts", answer=_block_used)
"""The usage counts tokens that were verified and not sent."""
FIRST_SLOT_COUNTED: Final = ServiceFault(
    "lightseekorg/tokenspeed#1443",
    "counts",
    answer=lambda document, _place: _counted(document, _first_slot_counted),
    needs="counts of drafts in each answer",
)
"""One more drafted token is counted in every step than was drafted."""
LENGTH_BEFORE_STOP: Final = ServiceFault(
    "sgl-project/sglang#31599", "form", answer=_choices(_length_first), needs="an answer that stops"
)
"""An answer that stopped says that its length ended it."""
STREAMED_TEXT_LOST: Final = ServiceFault(
    "vllm-project/vllm#52469, #30204", "form", answer=_choices(_text_lost), needs="streamed answers"
)
"""Some parts of a stream have tokens and no text."""
CALL_ARGUMENTS_LOST: Final = ServiceFault(
    "vllm-project/vllm#41967", "tools", answer=_choices(_arguments_lost), needs="an answer that calls a tool"
)
"""The first call of an answer has no arguments."""
SAMPLED_AS_GREEDY: Final = ServiceFault(
    "Pushkinist/rMLX#519", "request", _asked(lambda body: {**body, "temperature": 0.0}), needs="a temperature above 0"
)
"""The drafting loop has no sampling and takes the likeliest token."""
TRUNCATION_DROPPED: Final = ServiceFault(
    "google-ai-edge/LiteRT-LM#3017", "request", _without("top_p", "top_k", "min_p"), needs="a top-k, top-p or min-p"
)
"""The drafting loop does not know how to truncate."""
PENALTIES_DROPPED: Final = ServiceFault(
    "Pushkinist/rMLX#529",
    "request",
    _without("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    needs="penalties or a bias",
)
"""The drafting loop does not know penalties and biases."""
GRAMMAR_DROPPED: Final = ServiceFault(
    "none known: engines whose drafting loop has no grammar, and that take the request all the same",
    "request",
    _without("response_format", "structured_outputs", "guided_json", "grammar", "json_schema"),
    needs="a grammar",
)
"""The drafting loop does not know grammars."""
TEMPLATE_ARGUMENTS_DROPPED: Final = ServiceFault(
    "raullenchai/Rapid-MLX#387",
    "request",
    _without("chat_template_kwargs"),
    needs="arguments to which the template reacts",
)
"""The arguments of the chat template are read by nobody."""
EARLIER_TURNS_LOST: Final = ServiceFault(
    "antirez/ds4#1000", "request", _last_message_only, needs="a chat of several messages"
)
"""A turn is answered without the turns before it."""
SLOT_OF_CANCELLED: Final = ServiceFault(
    "vllm-project/vllm#39012, sgl-project/sglang#35049",
    "request",
    place=lambda body, left: {**body, **{key: left[key] for key in PROMPTS if key in left}},
    needs="`cancel_beside`, and requests at the same time",
)
"""The next request after a cancelled one goes on from the prompt that was read into its slot."""
ONE_SEED: Final = ServiceFault(
    "none known: a service that replaces the seeds of its clients by a constant of its own",
    "request",
    _asked(lambda body: {**body, next((key for key in SEEDS if key in body), SEEDS[0]): 1}),
    needs="several samples of a prompt",
)
"""All requests have the same random numbers."""
