"""The engine's rounds, read from the growth of its counters token by token, and the contradictions among its accounts.

A round proposes, evaluates and accepts drafted tokens and queues its output, which later calls deliver one token at a
time. The last round may be cut: by the length, whose surplus is discarded, or by an end token, which the engine
consumes without delivering it to its own sequence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

SOURCES: Final = ("tokens", "sequence", "counters")
OF_ROUND: Final = (
    *("draft_tokens_proposed", "draft_tokens_evaluated", "draft_tokens_accepted", "correction_tokens", "bonus_tokens"),
    "tokens_queued",
)
"""Counters of a round, in the order of its fields."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round: drafted tokens, and the tokens that it delivered, cut at the answer's end."""

    proposed: int
    evaluated: int
    accepted: int
    corrections: int
    bonus: int
    queued: int
    delivered: int


@dataclass(frozen=True, slots=True)
class Accounts:
    """The engine's accounts of one request.

    growth: by token, of the counters. sequence: prompt and answer, without an end token. most: the largest number of
    drafted tokens in a round; 0 without speculation.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    sequence: Sequence[int]
    growth: Sequence[Mapping[str, int]]
    most: int
    ends: Sequence[int]

    def total(self, name: str) -> int:
        """The counter after the last token."""
        return sum(step.get(name, 0) for step in self.growth)


def rounds_of(growth: Sequence[Mapping[str, int]]) -> tuple[Round, ...]:
    """The rounds, in order; steps without a draft are in none."""
    starts = [at for at, step in enumerate(growth) if step.get("rounds")]
    alone = [at for at, step in enumerate(growth) if step.get("standard_fallback_steps")]
    result = []
    for start in starts:
        end = min((at for at in (*starts, *alone, len(growth)) if at > start), default=len(growth))
        result.append(Round(*(*(growth[start].get(name, 0) for name in OF_ROUND), end - start)))
    return tuple(result)


def mismatches(accounts: Accounts) -> tuple[str, ...]:
    """The contradictions among the engine's accounts of a request."""
    rounds = rounds_of(accounts.growth)
    return (*_of_sequence(accounts), *_of_rounds(accounts, rounds), *_of_totals(accounts, rounds))


def _of_sequence(accounts: Accounts) -> Iterator[str]:
    """An end token is returned, but is not in the sequence."""
    ended = bool(accounts.tokens) and accounts.tokens[-1] in accounts.ends
    kept = accounts.tokens[:-1] if ended else accounts.tokens
    if list(accounts.sequence) not in ([*accounts.prompt, *kept], [*accounts.prompt, *accounts.tokens]):
        yield f"sequence: {len(accounts.sequence)} tokens, not the prompt and the {len(accounts.tokens)} returned ones"


def _of_rounds(accounts: Accounts, rounds: Sequence[Round]) -> Iterator[str]:
    for at, item in enumerate(rounds):
        name, last, own = f"counters: round {at}", at == len(rounds) - 1, item.corrections + item.bonus
        if not 0 <= item.accepted <= item.evaluated <= item.proposed:
            yield f"{name} proposed {item.proposed}, evaluated {item.evaluated} and accepted {item.accepted}"
        if item.evaluated - item.accepted > 1:
            yield f"{name} evaluated {item.evaluated - item.accepted} tokens behind the last accepted one"
        if item.proposed > accounts.most:
            yield f"{name} proposed {item.proposed} tokens, more than {accounts.most}"
        if item.queued != item.accepted + own:
            yield f"{name} queued {item.queued} tokens of {item.accepted} accepted ones and {own} more"
        if own != 1 and not (last and own == 0):
            yield f"{name} has {item.corrections} corrections and {item.bonus} bonus tokens"
        if item.bonus and item.accepted < item.proposed:
            yield f"{name} has a bonus token, but accepted {item.accepted} of {item.proposed}"
        if item.delivered > item.queued or (item.delivered < item.queued and not last):
            yield f"{name} queued {item.queued} tokens and delivered {item.delivered}"


def _of_totals(accounts: Accounts, rounds: Sequence[Round]) -> Iterator[str]:
    total, count = accounts.total, len(accounts.tokens)
    if len(accounts.growth) != count:
        yield f"counters: {len(accounts.growth)} readings of {count} tokens"
    if accounts.most == 0:
        if rounds:
            yield f"counters: {len(rounds)} rounds without speculation"
        return
    if total("rounds") != len(rounds):
        yield f"counters: {total('rounds')} rounds in {len(rounds)} calls"
    if total("tokens_queued") != total("tokens_emitted") + total("tokens_discarded") + total("tokens_buffered"):
        yield f"counters: {total('tokens_queued')} tokens queued, but not as many emitted, discarded and buffered"
    alone = total("standard_fallback_steps")
    if sum(other.delivered for other in rounds) + alone != count:
        yield f"counters: {count} tokens, of which {alone} without a draft and {count - alone} others in no round"


def speculation(accounts: Accounts) -> dict[str, Any]:
    """The facts of a request, by the names that endpoints use, and the engine's further counts."""
    rounds = rounds_of(accounts.growth)
    return {
        "steps": len(rounds) + accounts.total("standard_fallback_steps"),
        "drafted": sum(other.proposed for other in rounds),
        "evaluated": sum(other.evaluated for other in rounds),
        "accepted": sum(other.accepted for other in rounds),
        "corrections": sum(other.corrections for other in rounds),
        "bonus": sum(other.bonus for other in rounds),
        "undrafted_steps": accounts.total("standard_fallback_steps"),
        "discarded": accounts.total("tokens_discarded"),
        "draft_forwards": accounts.total("draft_forward_passes"),
        "target_forwards": accounts.total("target_forward_passes"),
        "per_step_drafted": [other.proposed for other in rounds],
        "per_step_accepted": [other.accepted for other in rounds],
        "per_step_emitted": [other.delivered for other in rounds],
    }
