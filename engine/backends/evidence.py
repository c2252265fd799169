"""The evidence in a backend's records, declared before anything is imported or run.

Each backend declares it once, in a `Declaration` beside its own code: by record level, and narrowed to one arm by the
arm's settings. A declaration describes a sound run: an engine that refuses its hooks, or a server that omits
log-probabilities, provides less and reports that request by request. The module imports neither torch nor any engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.record.effective import LoopOwner


class Part(StrEnum):
    """One part of the evidence, from a record or from the backend itself."""

    TEXT = "text"
    DECODED = "second decoding"
    """The text of the final tokens, decoded apart from the path that made the answer's text."""
    TOKENS = "tokens"
    """The engine's own token ids, with its end tokens known."""
    DRAFTS = "drafts"
    """By step: the drafted tokens and which of them were accepted."""
    COUNTS = "counts"
    """Numbers of drafted and accepted tokens alone."""
    LOGPROBS = "log-probabilities"
    """Of the emitted tokens."""
    P = "p"
    """The target's law at every emitted token, whole or in cells."""
    APPLIED = "applied p"
    """The probabilities that the engine itself computed from its rows under the request's parameters."""
    Q = "q"
    """The law of every drafted token that was drawn."""
    ROWS = "rows"
    """Whole rows of the target's logits."""
    NUMBERS = "random numbers"
    """The random numbers that decided, or the key that regenerates them."""
    REFERENCE = "reference pass"
    """The target's rows by a pass of its own (`engine.backends.interface.Anchoring`)."""
    REREAD = "rereading"
    """The same rows under the numerics of decoding (`engine.backends.interface.Rereading`)."""
    REDRAFT = "drafting again"
    """The drafts along the recorded text, by a fresh proposer (`engine.backends.interface.Redrafting`)."""
    CALLS = "tool calls"
    """The calls of answers to requests that offer tools, as the engine read them."""
    CALLED_TEXT = "text of calls"
    """The text that holds these calls and the template that reads it, so that anyone can read it again."""
    MASKS = "masks"
    """Of requests under a grammar: the mask of every row that decided a token, and the same computed a second time."""
    ACCOUNTS = "accounts"
    """Independent accounts of each request, compared with one another."""
    IDENTITY = "identity"
    """The names of model, configuration and instance in each answer of a service."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The evidence of one record level: the evidence level 0-4, and its parts."""

    level: int
    parts: frozenset[Part]


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """The settings that determine an arm's evidence: its plan, its sampling parameters, and the target's source."""

    plan: EngineSpec
    sampling: SamplingParams
    target: ModelSource

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.sampling.greedy


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """The expected evidence of one arm's record.

    protocol: the rule in the header of its records.
    lossless: the rule declares that it keeps the target's law.
    drawn: some drafted tokens are drawn from a law, none of them at temperature 0.
    promises: the promised bitwise equality of the target's rows (`engine.models.numerics`); None if nothing is
    reported.
    shape: `chain` or `tree`, of the drafts.
    shares: drafts depend on other requests too.
    seeded: requests carry seeds, so that equal ones can repeat their tokens.
    steady: every draft is as long as gamma and the request's end allow (`engine.core.steady.SteadyDrafts`).
    """

    decoder: LoopOwner
    level: int
    parts: frozenset[Part]
    protocol: Protocol
    lossless: bool = True
    drawn: bool = False
    promises: str | None = None
    shape: str = "chain"
    shares: bool = False
    steady: bool = False
    seeded: bool = True

    def gives(self, part: Part) -> bool:
        """True if the record or the backend itself provides the part."""
        return part in self.parts


@dataclass(frozen=True, slots=True)
class Declaration:
    """One backend's evidence. `arm` narrows a record level to an arm's settings.

    `arm` raises InvalidRequest for settings that the backend rejects.
    """

    decoder: LoopOwner
    levels: Mapping[RecordLevel, Shown]
    arm: Callable[[ArmSettings], ArmEvidence]


def levels(steps: Mapping[RecordLevel, tuple[int, frozenset[Part]]]) -> Mapping[RecordLevel, Shown]:
    """Record levels in their order, each with its evidence level and what it adds to the level before, if anything."""
    level, parts = 0, frozenset[Part]()
    result = {}
    for record in RecordLevel:
        level, more = steps.get(record, (level, frozenset()))
        parts |= more
        result[record] = Shown(level, parts)
    return result
