"""Faults, and the arms in which they show.

This module knows no check: the tests and the self-test measure which checks detect a fault.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias

from engine.core.types import Protocol, SamplingParams
from engine.decode.seams import EngineParts
from engine.proposers.interface import Shape
from engine.stream.interface import StreamSpec

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
    "tools",
    "stream",
    "filters",
    "grammar",
]
"""Needs of a fault: a request or an arm without one shows no effect.

`temperature` is one other than 1, `truncation` a top-k, top-p or min-p, `masks` a bias, bad words or a minimum length,
`weights` a model that is not scripted, `hidden states` a proposer that reads those of the target, `tools` requests that
offer some, `stream` an arm that records its text as it leaves.
"""

Situation: TypeAlias = str
"""Name of the event of a run before which a fault cannot show; a run without it cannot tell it from a clean engine.

The auditor's catalogue of situations says how each event is recognised.
"""

SAMPLED: Final = SamplingParams(temperature=1.0)


@dataclass(frozen=True, slots=True)
class Suits:
    """The arms in which a fault can take effect.

    protocols: the verification rules that the fault breaks; every other rule refuses it. Empty for all rules. shape:
    the shape of the proposals that the fault needs; None for any. temperature: whether the fault shows when sampling,
    at temperature 0, or in both cases. needs: what else a request or the arm must have.
    """

    protocols: tuple[Protocol, ...] = ()
    shape: Shape | None = None
    temperature: Literal["sampled", "greedy", "both"] = "sampled"
    needs: tuple[Trait, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLength:
    """The fewest and the most tokens of a prompt."""

    least: int = 3
    most: int = 6


@dataclass(frozen=True, slots=True)
class Scenario:
    """One arm in which a fault shows, for a self-test to build.

    drafts: how many draft models the proposer needs.
    rows: requests decoded at once.
    models: scripted models show most faults; a few faults need the bundled models, which have weights and heads.
    target: how a bundled target is loaded: its loader, dtype and numerics, where they are not the defaults.
    beside: the parameters of a neighbour in the batch, one for each request; None without neighbours.
    prompt: the fewest and the most tokens of a prompt, for scripted models.
    shared: the number of tokens with which all these prompts begin.
    tools: the requests offer the tool of scripted models.
    stream: the filters of an arm that records its text as it leaves.
    """

    protocol: Protocol = Protocol.CHAIN
    proposer: str = "draft_model"
    gamma: int = 4
    sampling: SamplingParams = SAMPLED
    options: Mapping[str, Any] = field(default_factory=dict)
    drafts: int = 1
    rows: int = 8
    models: Literal["scripted", "bundled"] = "scripted"
    target: Mapping[str, Any] = field(default_factory=dict)
    beside: SamplingParams | None = None
    prompt: PromptLength = PromptLength()
    shared: int = 0
    tools: bool = False
    stream: StreamSpec | None = None

    @property
    def draft_names(self) -> tuple[str, ...]:
        """The names of the draft models: draft, draft1, draft2."""
        return tuple("draft" if i == 0 else f"draft{i}" for i in range(self.drafts))

    def sources(self, first: int) -> dict[str, str]:
        """The source of each model: scripts from number `first` on, or the bundled target and a draft."""
        names = ("target", *self.draft_names)
        if self.models == "scripted":
            return {name: f"scripted:{first + i}" for i, name in enumerate(names)}
        head = files("engine") / "bundled" / self.proposer
        draft = self.proposer if head.is_dir() else "draft"
        return {name: f"bundled:{'target' if name == 'target' else draft}" for name in names}


CHAIN_ONLY: Final = Suits((Protocol.CHAIN,), "chain")
"""The chain rule with chain proposals."""
CHAIN_SHAPED: Final = Suits(shape="chain")
"""Any rule with chain proposals, when sampling."""
ANY_ARM: Final = Suits(temperature="both")
CHAINS: Final = Suits(shape="chain", temperature="both")
TREES: Final = Suits(shape="tree", temperature="both")
SEVERAL: Final = Suits(temperature="both", needs=("several requests",))

SAMPLED_SCENARIO: Final = Scenario()
WARPED: Final = Scenario(sampling=SamplingParams(temperature=0.6, top_p=0.95))
"""Sampling parameters under which the distribution of a row differs from the softmax of its logits."""
VOCABULARY: Final = 32
"""Tokens of a scripted model."""
AWAY_FROM_ZERO: Final = tuple((token, 16.0) for token in range(VOCABULARY))
"""A bias for all tokens, which changes no choice.
Real logits lie around 20, where bfloat16 is coarse and ties are common. Scripted logits lie around 0, where bfloat16 is
fine; the bias moves them into the coarse range.
"""
COUPLED: Final = Scenario(protocol=Protocol.GUMBEL)
"""The rule whose output equals that of plain decoding token for token, so that a comparison shows a wrong row."""
COUPLED_TREE: Final = Scenario(protocol=Protocol.GUMBEL, proposer="specinfer", gamma=6)
"""The same rule with branching drafts."""


ChangeParts = Callable[[EngineParts], EngineParts]


@dataclass(frozen=True, slots=True)
class Fault:
    """One bug: what it breaks, where it was seen, and how it is re-created.

    upstream: repository and number of the bug that the fault re-creates, or `none known:` and the reason to include it.
    apply: the engine's parts with the bug built in.
    breaks: the claim that no longer holds.
    seen_from: the least evidence that can show the fault: the emitted text, or how the engine arrived at it.
    situation: what has to happen before the fault can show; the one that happens least often if there are several.
    name: as registered; `engine.faults.load` fills it in.
    """

    upstream: str
    apply: ChangeParts
    suits: Suits = Suits()
    scenario: Scenario = Scenario()
    breaks: str = field(default="law", kw_only=True)
    seen_from: Literal["text", "engine evidence"] = field(default="text", kw_only=True)
    situation: Situation = field(kw_only=True)
    name: str = field(default="", kw_only=True)
