"""The quantities that an arm records, and for each the independent accounts of it that a check can judge.

A quantity that only one account describes can be wrong while every check passes. `TABLE` lists the accounts of each
quantity, strongest first: the default checks of an arm derive from it (`audit.checks.battery`), and the check
`second_accounts` names every recorded quantity that no listed check looked at twice.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from audit.evidence.promises import keeps
from engine.backends.evidence import ArmEvidence, Part
from engine.core.types import Protocol
from engine.record.effective import LoopOwner


class Quantity(StrEnum):
    """One kind of thing that an arm records."""

    ANSWERS = "answers"
    """Which requests were answered, and why the others were not."""
    TOKENS = "emitted tokens"
    ROWS = "target rows"
    """p at the emitted tokens, or digests of the rows."""
    LOGPROBS = "log-probabilities"
    DECISIONS = "decisions"
    """Which drafted tokens were examined and kept."""
    NUMBERS = "random numbers"
    SEEDS = "seeds"
    """Their effect, of an engine that shows neither p nor random numbers."""
    DRAFTS = "drafts"
    DRAFT_ROWS = "draft rows"
    """q at the examined tokens."""
    TEXT = "text"
    ENDS = "ends"
    """Stops and finish reasons."""
    COUNTS = "counts"
    """Numbers of steps, drafted and accepted tokens."""
    PARAMETERS = "parameters"
    """The settings and the model in effect."""
    IDENTITY = "identity"
    """Who answered: model, configuration and instance."""
    MASKS = "masks"
    STRUCTURE = "structure"
    """The answer's conformity with the grammar of its request."""
    CALLS = "tool calls"
    CHUNKS = "chunks"
    FILTERS = "filter decisions"
    LATENCIES = "latencies"


@dataclass(frozen=True, slots=True)
class ArmOutline:
    """The features of an arm that determine what it records and which accounts exist.

    level: the evidence level of its record, 0 to 4. greedy: it decodes at temperature 0. calls: requests offer tools.
    structured: requests have a grammar. streamed: the text is recorded as it leaves, `filtered` through filters.
    """

    shown: ArmEvidence
    level: int
    greedy: bool
    calls: bool = False
    structured: bool = False
    streamed: bool = False
    filtered: bool = False

    @property
    def ours(self) -> bool:
        """True if the project's own loop decoded."""
        return self.shown.decoder is LoopOwner.OWN

    @property
    def repeats(self) -> bool:
        """True if its tokens must be the baseline's: at temperature 0, and with shared random numbers."""
        return self.greedy or self.shown.protocol is Protocol.GUMBEL


When = Callable[[ArmOutline], bool]


@dataclass(frozen=True, slots=True)
class Account:
    """A second account of a quantity: `checks` compare the record with it, in arms for which `when` holds."""

    name: str
    checks: tuple[str, ...]
    when: When


def _always(_arm: ArmOutline) -> bool:
    return True


def _gives(part: Part) -> When:
    return lambda arm: arm.shown.gives(part)


REFERENCE: Final = _gives(Part.REFERENCE)


def _foreign(arm: ArmOutline) -> bool:
    return not arm.ours


def _drawn(arm: ArmOutline) -> bool:
    return not arm.greedy


def _named(arm: ArmOutline) -> bool:
    """True if an independent pass can follow the tokens: they are the engine's own, not those of a text."""
    return REFERENCE(arm) and (arm.shown.gives(Part.TOKENS) or arm.shown.gives(Part.LOGPROBS))


def _followed(arm: ArmOutline) -> bool:
    """True if only an independent pass has the law of the tokens: the baseline of another engine shares its faults."""
    return arm.level < 3 and _named(arm) and not (arm.ours and arm.repeats)


def _repeated(arm: ArmOutline) -> bool:
    """True if each token is compared with the baseline's: the noise of another engine's draws is not known."""
    return arm.greedy or (arm.ours and arm.repeats)


def _keyed(arm: ArmOutline) -> bool:
    """True if every random number comes from a key, or none is drawn."""
    return arm.ours or arm.greedy


def _level(least: int) -> When:
    return lambda arm: arm.level >= least


def _all(*parts: When) -> When:
    return lambda arm: all(part(arm) for part in parts)


def _bits(arm: ArmOutline) -> bool:
    return arm.level >= 1 and arm.shown.gives(Part.REREAD) and keeps(arm.shown.promises, arm.shown.shape)


@dataclass(frozen=True, slots=True)
class KnownAccounts:
    """Where a quantity is recorded, and its accounts, strongest first.

    optional: no verdict rests on the quantity, so that an arm without an account of it can pass; the reason.
    """

    recorded: When
    accounts: tuple[Account, ...]
    optional: str = ""

    @property
    def judges(self) -> tuple[str, ...]:
        """The checks of all accounts, strongest first."""
        return tuple(dict.fromkeys(name for account in self.accounts for name in account.checks))


EQUAL: Final = ("greedy_equality", "coupled_equality")
LAWS: Final = ("law", "prefix_measurable", "acceptance_theory")
TABLE: Final[Mapping[Quantity, KnownAccounts]] = {
    Quantity.ANSWERS: KnownAccounts(_foreign, (Account("requests that were sent", ("liveness",), _always),)),
    Quantity.PARAMETERS: KnownAccounts(
        _foreign,
        (
            Account("p under the requested parameters", ("honoured",), _all(_drawn, _gives(Part.APPLIED))),
            Account("tokens that speak for the parameters", ("honoured_by_tokens",), _all(_drawn, _named)),
            Account("settings that the engine reports", ("configuration",), _always),
        ),
    ),
    Quantity.IDENTITY: KnownAccounts(
        _gives(Part.IDENTITY), (Account("the requested model, and the other answers", ("identity",), _always),)
    ),
    Quantity.COUNTS: KnownAccounts(
        _always,
        (
            Account("accounts of the engine's other parts", ("reconciliation",), _foreign),
            Account("sums over steps", ("accounting",), _always),
        ),
    ),
    Quantity.DECISIONS: KnownAccounts(
        _all(_level(3), _gives(Part.DRAFTS)),
        (
            Account("the rule, computed again", ("replay",), _keyed),
            Account("p and q on record", ("acceptance_theory", "law"), _always),
        ),
    ),
    Quantity.NUMBERS: KnownAccounts(
        _all(_drawn, _gives(Part.NUMBERS)),
        (
            Account("their key and their law", ("rng_streams",), _level(4)),
            Account("the rule, computed again", ("replay",), _level(3)),
            Account("tokens drawn from an independent pass's p", ("token_law",), REFERENCE),
        ),
    ),
    Quantity.SEEDS: KnownAccounts(
        _all(_drawn, _foreign, lambda arm: arm.level < 3 and arm.shown.seeded),
        (Account("another run", ("same_seed", "seed"), _always),),
    ),
    Quantity.TOKENS: KnownAccounts(
        _always,
        (
            Account("p of an independent pass", ("token_law",), _followed),
            Account("the baseline's tokens", EQUAL, _repeated),
            Account("the baseline's tokens under its seeds", ("same_seed",), lambda arm: arm.repeats),
            Account("p on record", LAWS, _level(3)),
            Account("samples of the baseline", ("two_sample",), _always),
        ),
    ),
    Quantity.ROWS: KnownAccounts(
        lambda arm: arm.shown.gives(Part.P) or (arm.ours and arm.level >= 1),
        (
            Account("the same pass, read again", ("bitwise",), _bits),
            Account("an independent pass", ("row_closeness",), _all(REFERENCE, _level(2))),
            Account("log-probabilities of an independent pass", ("logprob_closeness",), REFERENCE),
        ),
    ),
    Quantity.LOGPROBS: KnownAccounts(
        _gives(Part.LOGPROBS),
        (
            Account("rows on record", ("accounting",), _gives(Part.P)),
            Account(
                "an independent pass, or the baseline",
                ("logprob_closeness",),
                lambda arm: REFERENCE(arm) or arm.repeats,
            ),
        ),
    ),
    Quantity.DRAFT_ROWS: KnownAccounts(
        lambda arm: arm.level >= 3 and arm.shown.drawn,
        (
            Account("draws from q", ("q_contract",), _always),
            Account("drafts made again", ("draft_anchor",), _gives(Part.REDRAFT)),
        ),
    ),
    Quantity.DRAFTS: KnownAccounts(
        _gives(Part.DRAFTS),
        (
            Account("drafts made again", ("draft_anchor",), _gives(Part.REDRAFT)),
            Account("accounts of the engine's other parts", ("reconciliation",), _gives(Part.ACCOUNTS)),
            Account("the rule, computed again", ("replay",), _level(3)),
        ),
    ),
    Quantity.TEXT: KnownAccounts(
        _always,
        (
            Account("the tokens, decoded again", ("text",), _gives(Part.DECODED)),
            Account("the baseline's text", ("greedy_equality",), lambda arm: arm.repeats),
            Account("samples of the baseline", ("two_sample",), _always),
        ),
    ),
    Quantity.ENDS: KnownAccounts(
        _always,
        (
            Account("the tokens and the request", ("accounting",), _gives(Part.TOKENS)),
            Account("the baseline's ends", EQUAL, lambda arm: arm.repeats),
            Account("samples of the baseline", ("two_sample",), _always),
        ),
    ),
    Quantity.MASKS: KnownAccounts(
        lambda arm: arm.structured and arm.shown.gives(Part.MASKS),
        (Account("masks computed again", ("constraint_replay",), _always),),
    ),
    Quantity.STRUCTURE: KnownAccounts(
        lambda arm: arm.structured, (Account("the grammar, parsed again", ("schema_conformance",), _always),)
    ),
    Quantity.CALLS: KnownAccounts(
        lambda arm: arm.calls and arm.shown.gives(Part.CALLS),
        (Account("the text, parsed again", ("tool_call_equality",), _always),),
    ),
    Quantity.CHUNKS: KnownAccounts(
        lambda arm: arm.streamed, (Account("the tokens, decoded again", ("no_leak",), _always),)
    ),
    Quantity.FILTERS: KnownAccounts(
        lambda arm: arm.filtered, (Account("the filters, run again", ("filter_equality",), _always),)
    ),
    Quantity.LATENCIES: KnownAccounts(_always, (), optional="no verdict rests on them"),
}
"""Everything that an arm records."""


def accounts_of(arm: ArmOutline) -> Iterator[tuple[Quantity, tuple[Account, ...]]]:
    """The recorded quantities of an arm, each with its available accounts."""
    for quantity, entry in TABLE.items():
        if entry.recorded(arm):
            yield quantity, tuple(account for account in entry.accounts if account.when(arm))
