"""The accounts of one answer of llama.cpp's server, compared with one another.

The counters are those of all requests that ran together. Cannot see: which tokens were drafted.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.backends.openai.server_counters import ACCEPTED, DRAFTED, DRAFTS, of_llama
from engine.backends.process.arm import near
from engine.core.types import FinishReason

SOURCES: Final = (
    *("tokens", "finish reason", "lengths", "log-probabilities", "generation settings", "timings", "counters"),
)
REASONS: Final = {FinishReason.EOS: "eos", FinishReason.STOP: "word", FinishReason.LENGTH: "limit"}
"""The server's words for an end."""
COUNTERS: Final = tuple(of_llama(name) for name in (DRAFTS, DRAFTED, ACCEPTED))
"""The server's counters, in this order."""
POSITIONS: Final = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total["


def mismatches(asked: Mapping[str, Any], header: Mapping[str, Any], reason: FinishReason) -> Iterator[str]:
    """The contradictions among the accounts of one answer to the message `asked`."""
    answer, body = header["answer"], asked["body"]
    tokens = answer["tokens"]
    if answer["stop_type"] != REASONS[reason]:
        yield f"finish reason: the server ended with {answer['stop_type']}, its tokens end with {reason.value}"
    if reason is FinishReason.LENGTH and len(tokens) != body["n_predict"]:
        yield f"finish reason: {len(tokens)} tokens at the limit of {body['n_predict']}"
    yield from _lengths(answer, len(body["prompt"]))
    yield from _settings(body, answer["generation_settings"])
    yield from _drafts(answer["timings"], len(tokens), asked["gamma"])
    yield from _counters(header["counters"], header["totals"], asked["gamma"])


def _lengths(answer: Mapping[str, Any], prompt: int) -> Iterator[str]:
    count, timings = len(answer["tokens"]), answer["timings"]
    for name, value in (("tokens_predicted", answer["tokens_predicted"]), ("predicted_n", timings["predicted_n"])):
        if value != count:
            yield f"lengths: {name} is {value}, the answer has {count} tokens"
    if answer["tokens_evaluated"] != prompt:
        yield f"lengths: tokens_evaluated is {answer['tokens_evaluated']}, the prompt has {prompt} tokens"
    if timings["prompt_n"] + timings["cache_n"] != prompt:
        yield f"lengths: {timings['prompt_n']} prompt tokens and {timings['cache_n']} cached ones, of {prompt}"
    if answer["truncated"]:
        yield "lengths: the server dropped tokens of the context"
    numbers = [item["id"] for item in answer.get("completion_probabilities", [])]
    # the server leaves out those of a stop string
    whole = len(numbers) == count or answer["stop_type"] == "word"
    if not whole or numbers != list(answer["tokens"][: len(numbers)]):
        yield f"log-probabilities: of {len(numbers)} tokens, not those of the {count} emitted ones"


def _settings(body: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """The settings that the server kept otherwise than they were set; it keeps numbers as floats."""
    for name, value in body.items():
        if name in kept and not _same(name, value, kept[name]):
            yield f"generation settings: {name} was set to {value}, the server has {kept[name]}"


def _same(name: str, value: Any, kept: Any) -> bool:
    if name == "logit_bias":
        # the server writes a forbidden token's bias as null
        stated = {token: None if bias is False else bias for token, bias in value}
        result = {item["token"]: item["bias"] for item in kept}
        return stated.keys() == result.keys() and all(near(stated[token], result[token]) for token in stated)
    return near(value, kept) if isinstance(value, float) else bool(value == kept)


def _drafts(timings: Mapping[str, Any], count: int, gamma: int) -> Iterator[str]:
    drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
    if drafted and not gamma:
        yield f"timings: {drafted} drafted tokens without speculation"
    if accepted > drafted:
        yield f"timings: {accepted} accepted of {drafted} drafted tokens"
    # the last step may end inside its accepted draft
    if accepted > count - 1 + gamma:
        yield f"timings: {accepted} accepted tokens in an answer of {count}"


def _counters(growth: Mapping[str, int], totals: Mapping[str, int], gamma: int) -> Iterator[str]:
    drafts, drafted, accepted = (growth.get(name, 0) for name in COUNTERS)
    if drafted > gamma * drafts:
        yield f"counters: {drafted} tokens in {drafts} drafts of at most {gamma}"
    placed = sum(value for name, value in growth.items() if name.startswith(POSITIONS))
    if placed != accepted:
        yield f"counters: {accepted} accepted tokens, {placed} by position"
    if (drafted, accepted) != (totals["drafted"], totals["accepted"]):
        yield (
            f"counters: {drafted} drafted and {accepted} accepted tokens, the answers have {totals['drafted']} and "
            f"{totals['accepted']}"
        )
