"""The engine's rounds from the calls of its sampler, and the contradictions among its accounts of a request.

In a round the draft samples n tokens one by one, then the target samples n + 1 tokens: in one call, or in one call per
token if logits processors run. The engine emits the target's samples until one is not the drafted token.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.core.sequences import agreeing

SOURCES: Final = ("tokens", "from_draft", "sampler", "finish reason", "arguments")
MATCHING: Final = frozenset({"0.32.2"})
"""Versions whose source returns the target's draws and no others, at any temperature."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two accounts that differ; `misreturned` if the engine returned another token than its target drew there."""

    message: str
    misreturned: bool = False


@dataclass(frozen=True, slots=True)
class DraftRound:
    """One round: N drafted tokens, the target's N + 1 samples, and by emitted token the engine's word on it."""

    drafted: tuple[int, ...]
    sampled: tuple[int, ...]
    emitted: tuple[int, ...]
    from_draft: tuple[bool, ...]

    @property
    def accepted(self) -> int:
        """Drafted tokens that the target sampled too, before an end cut the round."""
        return agreeing(self.sampled, self.drafted)


def rounds_of(answer: Mapping[str, Any]) -> tuple[DraftRound, ...]:
    """The rounds of an answer, in order; calls that are no round give samples without drafts."""
    tokens, words, calls = answer["tokens"], answer["from_draft"], answer["calls"]
    starts = [at for at, group in enumerate(calls) if group]
    ends = [*starts[1:], len(tokens)]
    result = []
    for start, end in zip(starts, ends, strict=True):
        drafted, sampled = _split(calls[start])
        result.append(DraftRound(drafted, sampled, tuple(tokens[start:end]), tuple(words[start:end])))
    return tuple(result)


def _split(calls: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The draft's tokens, and the target's."""
    if len(calls[-1]) > 1:
        return tuple(token for call in calls[:-1] for token in call), tuple(calls[-1])
    tokens = [token for call in calls for token in call]
    half = len(tokens) // 2
    return tuple(tokens[:half]), tuple(tokens[half:])


def contradictions(answer: Mapping[str, Any], asked: Mapping[str, Any], gamma: int) -> tuple[Contradiction, ...]:
    """The contradictions among the accounts of one answer; `asked` is the message, `gamma` 0 without speculation."""
    accounts = _of_rounds(answer, asked, gamma) if gamma else _of_plain(answer)
    rest = (*_of_end(answer, asked), *_of_arguments(answer, asked))
    return (*accounts, *(Contradiction(message) for message in rest))


def keeps_draws(version: str | None, *, greedy: bool, gamma: int) -> bool:
    """True if no lossless rule of the engine may return another token than its target drew.

    A greedy draw is the only token that greedy decoding allows, and without speculation no rule stands between a draw
    and its return. With drafts at a temperature, a rule that compares p with q could correct a draw, so the version
    must be one of `MATCHING`.
    """
    return greedy or not gamma or version in MATCHING


def _of_plain(answer: Mapping[str, Any]) -> Iterator[Contradiction]:
    sampled = [token for group in answer["calls"] for call in group for token in call]
    tokens = answer["tokens"]
    # the engine samples ahead
    if sampled[: len(tokens)] != tokens:
        message = f"sampler: drew {len(sampled)} tokens, of which the {len(tokens)} returned ones are not the first"
        yield Contradiction(message, _first_unlike(tokens, sampled) is not None)
    if any(answer["from_draft"]):
        yield Contradiction("from_draft: a drafted token without a draft")


def _first_unlike(returned: Sequence[int], drawn: Sequence[int]) -> int | None:
    """The first place that has a returned and a drawn token, and these differ."""
    places = enumerate(zip(returned, drawn, strict=False))
    return next((at for at, (ours, theirs) in places if ours != theirs), None)


def _of_rounds(answer: Mapping[str, Any], asked: Mapping[str, Any], gamma: int) -> Iterator[Contradiction]:
    rounds, before = rounds_of(answer), 0
    if not answer["calls"][0]:
        yield Contradiction("sampler: not asked before the first token")
    for at, item in enumerate(rounds):
        width = min(gamma, asked["sampling"]["max_tokens"] - before)
        shape = list(_of_shape(item, width))
        tokens = list(_of_tokens(item, last=at == len(rounds) - 1))
        yield from (Contradiction(f"{problem}, in round {at}") for problem in shape)
        # of a round with other calls than expected, nobody knows which call drew which token
        yield from (
            Contradiction(f"{token.message}, in round {at}", token.misreturned and not shape) for token in tokens
        )
        before += len(item.emitted)


def _of_shape(other: DraftRound, width: int) -> Iterator[str]:
    if len(other.drafted) != width:
        yield f"sampler: {len(other.drafted)} drafted tokens, not {width}"
    if len(other.sampled) != len(other.drafted) + 1:
        yield f"sampler: {len(other.sampled)} samples of the target beside {len(other.drafted)} drafted tokens"


def _of_tokens(other: DraftRound, *, last: bool) -> Iterator[Contradiction]:
    count = len(other.emitted)
    if other.emitted != other.sampled[:count]:
        at = _first_unlike(other.emitted, other.sampled)
        place = "" if at is None else f": {other.emitted[at]} at place {at}, where it drew {other.sampled[at]}"
        yield Contradiction(f"tokens: returned ones are not the target's samples{place}", at is not None)
    expected = tuple(place < other.accepted for place in range(count))
    if other.from_draft != expected:
        told = f"from_draft: true {sum(other.from_draft)} times, but {sum(expected)} drafted tokens are emitted"
        yield Contradiction(told)
    if count > other.accepted + 1 or (count <= other.accepted and not last):
        # what the target drew behind a refused draft was drawn after another text
        behind = count > other.accepted + 1
        yield Contradiction(f"tokens: {count} returned beside {other.accepted} accepted drafted ones", behind)


def _of_end(answer: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    tokens, ends = answer["tokens"], asked["sampling"]["ends"]
    expected = "stop" if tokens[-1] in ends else "length"
    if answer["finish"] != expected:
        yield f"finish reason: the engine ended with {answer['finish']}, its tokens end with {expected}"
    inside = [token for token in tokens[:-1] if token in ends]
    if inside:
        yield f"tokens: {inside[0]} ends an answer, and others follow it"


def _of_arguments(answer: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    given = {"max_tokens": asked["sampling"]["max_tokens"], **asked["arguments"]}
    for name, value in given.items():
        if answer["arguments"].get(name) != value:
            yield f"arguments: {name} was set to {value}, the engine has {answer['arguments'].get(name)}"


def speculation(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a request, by the names that endpoints use."""
    rounds = rounds_of(answer)
    return {
        "steps": len(rounds),
        "drafted": sum(len(other.drafted) for other in rounds),
        "accepted": sum(answer["from_draft"]),
        "per_step_drafted": [len(other.drafted) for other in rounds],
        "per_step_accepted": [sum(other.from_draft) for other in rounds],
        "per_step_emitted": [len(other.emitted) for other in rounds],
    }
