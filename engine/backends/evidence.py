"""What the records of a backend show, stated before anything is imported or run.

Each backend declares it once, in a `Declaration` beside its own code: by record level, and narrowed to one arm by the
arm's settings. A declaration is what a sound run gives: an engine that refuses its hooks, or a server that leaves out
log-probabilities, gives less and reports that request by request. Imports neither torch nor any engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import Decoder


class Part(StrEnum):
    """One thing that a record, or a backend beside it, may give."""

    TEXT = "text"
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
    Q = "q"
    """The law of every drafted token that was drawn."""
    ROWS = "rows"
    """Whole rows of the target's logits."""
    NUMBERS = "random numbers"
    """Those that decided, or the key that gives them."""
    REFERENCE = "reference pass"
    """The target's rows by a pass of its own (`engine.backends.interface.Anchoring`)."""
    ACCOUNTS = "accounts"
    """Independent accounts of each request, compared with each other."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What one record level gives: the evidence level 0-4, and its parts."""

    level: int
    parts: frozenset[Part]


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """What decides what an arm shows: its plan, its temperature, and where the target comes from."""

    plan: EngineSpec
    greedy: bool
    target: ModelSource


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """What one arm's record is expected to show.

    protocol: the rule in the header of its records.
    lossless: the rule declares that it keeps the target's law.
    drawn: some drafted tokens are drawn from a law, none of them at temperature 0.
    promises: how far the target's bits are promised equal (`engine.models.numerics`); None where nothing is reported.
    shape: `chain` or `tree`, of the drafts.
    """

    decoder: Decoder
    level: int
    parts: frozenset[Part]
    protocol: Protocol
    lossless: bool = True
    drawn: bool = False
    promises: str | None = None
    shape: str = "chain"

    def gives(self, part: Part) -> bool:
        """Whether the record, or the backend beside it, gives a part."""
        return part in self.parts


@dataclass(frozen=True, slots=True)
class Declaration:
    """One backend's evidence. `arm` narrows a record level to an arm's settings.

    `arm` raises InvalidRequest for settings that the backend does not take.
    """

    decoder: Decoder
    levels: Mapping[RecordLevel, Shown]
    arm: Callable[[ArmSettings], ArmEvidence]


def levels(steps: Mapping[RecordLevel, tuple[int, frozenset[Part]]]) -> Mapping[RecordLevel, Shown]:
    """Record levels in their order, each with its evidence level and what it adds to the level before."""
    parts: frozenset[Part] = frozenset()
    found = {}
    for record in RecordLevel:
        level, more = steps[record]
        parts |= more
        found[record] = Shown(level, parts)
    return found
