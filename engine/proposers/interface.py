"""The interface of a proposer: `start`, `propose`, `observe`, `finish`, declared facts; and the parts of one.

Calls are batch-first: one `propose` serves every active row, so that a drafting
model runs once per drafted position and not once per request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.core.errors import InvalidRequest
from engine.core.steady import SteadyDrafts as SteadyDrafts
from engine.core.trees import require_valid
from engine.core.types import DraftRule, Proposal, QKind, Request, StepOutcome
from engine.core.versions import DraftVersion
from engine.heads.checkpoint import HeadCheckpoint
from engine.models.interface import SlotCache, TargetModel
from engine.proposers.confidence import EndRule, unsure
from engine.sampling.draw import DraftContext, DrawRule, SiblingRule, draw_siblings
from engine.sampling.rng import Randomness
from engine.sampling.transforms import MaskOf

Shape = Literal["chain", "tree"]


@dataclass(frozen=True, slots=True)
class ProposerFacts:
    """A proposer's declared properties; by default it draws a chain and keeps state for each request."""

    name: str
    shape: Shape = "chain"
    q_kind: QKind = QKind.FULL
    """The kind at temperature above 0; at 0 every draft is deterministic."""
    can_couple: bool = True
    """It can draw with the target's own noise."""
    state: Literal["none", "request", "shared"] = "request"
    """The scope of its state: nothing, the request, or other requests too."""
    hidden: tuple[int, ...] = ()
    """Target layers whose hidden states it needs (`engine.models.interface.WantedOutputs`)."""
    lookahead_tokens: int = 0
    """Most tokens beside its drafts that the target reads for it in one step."""
    decided: bool = False
    """It reads the target's rows that decided the emitted tokens."""
    version: DraftVersion | None = None
    """The first version of a draft that learns while serving."""
    options: Mapping[str, Any] = field(default_factory=dict)
    steady: SteadyDrafts | None = None
    """The length of its drafts; None if it depends on the text or is undeclared."""
    copies: bool = False
    """Its drafts are a function of the tokens alone, without any arithmetic that rounds."""
    measured: bool = True
    """Every choice that rounding may change is made by the parts' draw rules, which know its lead
    (`engine.decode.redraws`).
    """
    reads_target: bool = True
    """It drafts with the target's outputs, cache or weights; False needs no target at all."""


@dataclass(frozen=True, slots=True)
class TargetOutputs:
    """The target's outputs for one row, apart from those that the verifier needs.

    hidden: [n, H] by layer id, of the n tokens that the target has newly read and that are committed: at `start` the
        prompt but its last token, in `observe` the step's root and the accepted tokens.
    looked_ahead: [M, V] logits after each of the proposal's lookahead tokens.
    decided: [E, V] the rows of the E emitted tokens, as the target gave them; in `observe`, for proposers that declare
    `decided`.
    """

    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    looked_ahead: Tensor | None = None
    decided: NDArray[np.floating[Any]] | None = None


NOTHING_READ: Final = TargetOutputs()


@dataclass(frozen=True, slots=True)
class Context:
    """One active row, as a proposer sees it."""

    row: int
    request: Request
    history: Sequence[int]
    """Prompt and committed tokens."""
    budget: int
    """Most nodes that may be drafted now; 0 or more."""
    randomness: Randomness
    depth: int = 2**31
    """Deepest node that can still be emitted; a chain's budget is never above it."""
    room: int = 0
    """Free columns in the target's cache: the limit for drafts and lookahead tokens together."""
    read: TargetOutputs = NOTHING_READ
    """Given to `start` and `observe`."""
    masks: MaskOf | None = None
    """The request's grammar; None without one. A draft outside it has p = 0."""

    def drawing(self, history: Sequence[int], eos_ids: tuple[int, ...]) -> DraftContext:
        """The inputs of a draw after `history`, the committed tokens and drafted ones."""
        request = self.request
        return DraftContext(history, len(request.prompt), request.sampling, eos_ids, self.randomness, self.masks)


class Proposer(Protocol):
    """Yields draft tokens by any means."""

    facts: ProposerFacts

    def start(self, context: Context) -> None:
        """A request enters a row; the row's earlier state is void."""

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One proposal per context, each of at most its budget; an empty one is fine."""

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """The verdict on the row's last proposal; `context.history` already holds the emitted tokens."""

    def finish(self, row: int) -> None:
        """The row's request is done."""


class StatelessProposer:
    """Start, observation and end of a proposer that keeps nothing."""

    def start(self, context: Context) -> None:
        """Nothing to prepare."""

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Nothing to learn."""

    def finish(self, row: int) -> None:
        """Nothing to forget."""


class WrappedProposer:
    """A proposer that is the inner one in everything."""

    def __init__(self, inner: Proposer) -> None:
        self._inner = inner
        self.facts = inner.facts

    def start(self, context: Context) -> None:
        """As the inner proposer's."""
        self._inner.start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """As the inner proposer's."""
        return self._inner.propose(contexts)

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """As the inner proposer's."""
        self._inner.observe(context, verdict)

    def finish(self, row: int) -> None:
        """As the inner proposer's."""
        self._inner.finish(row)


def require_fits(proposal: Proposal, context: Context) -> None:
    """Refuse a proposal that exceeds the caches' columns or whose tree is invalid.

    Raises:
        InvalidRequest: more nodes than the budget, or a parent that does not come before its child.
    """
    require_valid(proposal.tree)
    require_valid(proposal.lookahead_tokens)
    if len(proposal.tree) > context.budget:
        raise InvalidRequest(
            f"request {context.request.id}: the proposer drafted {len(proposal.tree)} tokens, "
            f"its budget was {context.budget}"
        )
    taken = len(proposal.tree) + len(proposal.lookahead_tokens)
    if proposal.lookahead_tokens.tokens and taken > context.room:
        raise InvalidRequest(
            f"request {context.request.id}: the proposer wants {taken} tokens read, there is room for {context.room}"
        )


class PlainProposer(StatelessProposer):
    """The absence of speculation: plain decoding is the same loop with an empty proposal."""

    facts = ProposerFacts("plain", shape="chain", q_kind=QKind.NONE, can_couple=True, state="none")

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Empty proposals."""
        return [Proposal() for _ in contexts]


@dataclass(frozen=True, slots=True)
class TargetSide:
    """The target and the loop's cache, for proposers that draft with the target itself.

    Columns after the committed tokens are scratch: the target's forward overwrites all that a proposer writes there.
    """

    model: TargetModel
    cache: SlotCache


class SharedMemory(Protocol):
    """The state that a proposer with state `shared` carries between requests, apart from the proposer itself."""

    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that drafts depend on."""

    def reset(self) -> None:
        """Forget finished requests."""


@dataclass(frozen=True, slots=True)
class ProposerParts:
    """`rows` and `capacity` size the caches; `rule` is the draft rule that the verifier requires.

    `draft` is the first of the arm's draft models, `others` are the rest.
    """

    rows: int
    capacity: int
    rule: DraftRule
    draw: DrawRule
    eos_ids: tuple[int, ...]
    draft: TargetModel | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[TargetModel, ...] = ()
    target: TargetSide | None = None
    head: HeadCheckpoint | None = None
    """A trained head, for families that draft with the target's hidden states."""
    gamma: int = 0
    """Most nodes per step that the arm requests; 0 if unspecified."""
    memory: SharedMemory | None = None
    """The state that earlier proposers of the arm carried over; None if there is none."""
    draw_siblings: SiblingRule = draw_siblings
    unsure: EndRule = unsure

    @property
    def drafts(self) -> tuple[TargetModel, ...]:
        """All draft models, in the arm's order."""
        return (self.draft, *self.others) if self.draft is not None else self.others


def memory_of(proposer: Proposer) -> SharedMemory | None:
    """The state that a proposer carries over to the arm's next one; None if stateless."""
    memory: SharedMemory | None = getattr(proposer, "memory", None)
    return memory
