"""What a fault is, and the arm in which it shows.

Knows nothing about checks: which of them see a fault is for them to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal

from engine.backends.engine_spec import EngineSpec
from engine.core.types import Protocol, SamplingParams
from engine.decode.seams import EngineParts
from engine.proposers.interface import Shape

Trait = Literal[
    "penalties",
    "masks",
    "truncation",
    "temperature",
    "end tokens",
    "stop strings",
    "several requests",
    "weights",
    "hidden states",
]
"""What a request or an arm must have for a fault to be more than a dead line of code: `temperature` is one other than
1, `truncation` a top-k, top-p or min-p, `masks` a bias, bad words or a minimum length, `weights` a model that is not a
script, `hidden states` a proposer that reads the target's.
"""

SAMPLED: Final = SamplingParams(temperature=1.0)


@dataclass(frozen=True, slots=True)
class Suits:
    """Where a fault has a place.

    protocols: the rules that it breaks, the others refuse it; empty for all.
    shape: the proposals that it needs; None for both.
    temperature: whether it shows when sampling, at temperature 0, or in both cases.
    needs: what else must be there for it to show.
    """

    protocols: tuple[Protocol, ...] = ()
    shape: Shape | None = None
    temperature: Literal["sampled", "greedy", "both"] = "sampled"
    needs: tuple[Trait, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One arm in which a fault shows itself, for a self-test to build.

    drafts: how many draft models the proposer needs.
    rows: requests decoded at once.
    models: scripted ones show most faults; some need the bundled ones, which have weights and heads.
    """

    protocol: Protocol = Protocol.CHAIN
    proposer: str = "draft_model"
    gamma: int = 4
    sampling: SamplingParams = SAMPLED
    options: Mapping[str, Any] = field(default_factory=dict)
    drafts: int = 1
    rows: int = 8
    models: Literal["scripted", "bundled"] = "scripted"

    @property
    def draft_names(self) -> tuple[str, ...]:
        """What its draft models are called: draft, draft1, draft2."""
        return tuple("draft" if i == 0 else f"draft{i}" for i in range(self.drafts))

    def sources(self, first: int) -> dict[str, str]:
        """Where its models come from: scripts from number `first` on, or the bundled target and a draft."""
        names = ("target", *self.draft_names)
        if self.models == "scripted":
            return {name: f"scripted:{first + i}" for i, name in enumerate(names)}
        head = files("engine") / "bundled" / self.proposer
        draft = self.proposer if head.is_dir() else "draft"
        return {name: f"bundled:{'target' if name == 'target' else draft}" for name in names}

    def plan(self, fault: str | None = None) -> EngineSpec:
        """Its arm, with a fault or without."""
        names = self.draft_names
        return EngineSpec(
            self.protocol,
            self.proposer,
            self.gamma,
            names[0] if names else None,
            self.options,
            self.rows,
            fault=fault,
            others=names[1:],
        )


CHAIN_ONLY: Final = Suits((Protocol.CHAIN,), "chain")
SAMPLED_SCENARIO: Final = Scenario()
WARPED: Final = Scenario(sampling=SamplingParams(temperature=0.6, top_p=0.95))
"""Sampling that makes a difference between a row and its softmax."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One bug: what it breaks, where it was seen, and how it is re-created."""

    name: str
    breaks: str
    """The claim that no longer holds."""
    upstream: str
    """Repository and number of the bug that it re-creates, or `none known:` and why it is here."""
    seen_from: Literal["text", "engine evidence"]
    """The least that must be looked at: whether what is emitted is wrong, or only how it came about."""
    parts: tuple[str, ...]
    """The fields of `engine.decode.seams.EngineParts` that it replaces."""
    apply: Callable[[EngineParts], EngineParts]
    suits: Suits = Suits()
    scenario: Scenario = Scenario()
