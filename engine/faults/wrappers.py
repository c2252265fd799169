"""Wrappers around models, rows and proposers, the raw material of faults: each passes everything on, except one change.

The module knows no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from engine.core.trees import path_tokens
from engine.core.types import Proposal, SamplingParams, Tree
from engine.decode.redraws import with_tokens
from engine.decode.seams import EngineParts, WrapModel, as_it_is
from engine.faults.interface import ChangeParts
from engine.models.interface import (
    Forward,
    Placement,
    SlotCache,
    TargetModel,
    WantedOutputs,
    WrappedModel,
    chain_placement,
)
from engine.proposers.interface import Context, Proposer, WrappedProposer
from engine.sampling.transforms import TargetRows, TransformedRow, transform

ChangeLogits = Callable[[Tensor, Placement], Tensor]
"""([B, T, V] logits of a verification step, placement of its tokens) -> the logits for the verifier, a new tensor."""
ChangePlacement = Callable[[Placement], Placement]
ChangeContext = Callable[[Context], Context]
ChangeProposal = Callable[[Proposal], Proposal]
ChangeProposals = Callable[[Sequence[Context], Sequence[Proposal]], Sequence[Proposal]]


def overwrite(model: TargetModel, cache: SlotCache, row: int, tokens: Mapping[int, int]) -> None:
    """Put the keys and values of other tokens into columns of a row; `tokens` by column."""
    for column, token in tokens.items():
        placement = chain_placement([[token]], [column], cache.trash, first_row=row)
        model.forward(cache, placement, WantedOutputs(logits=False))


class _ChangedModel(WrappedModel):
    def __init__(
        self, inner: TargetModel, place: ChangePlacement = as_it_is, answer: ChangeLogits | None = None
    ) -> None:
        super().__init__(inner)
        self._place, self._answer = place, answer

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        forward = self.inner.forward(cache, self._place(placement) if want.logits else placement, want)
        if forward.logits is None or self._answer is None:
            return forward
        return replace(forward, logits=self._answer(forward.logits, placement))


def with_target(wrap: WrapModel) -> ChangeParts:
    """Wrap the target once more."""
    return lambda parts: replace(parts, target=lambda model: wrap(parts.target(model)))


def with_logits(change: ChangeLogits) -> ChangeParts:
    """Give the verifier other logits than the target computed."""
    return with_target(lambda model: _ChangedModel(model, answer=change))


def with_placement(change: ChangePlacement) -> ChangeParts:
    """Have the target read the tokens of a verification step with another placement than the loop chose."""
    return with_target(lambda model: _ChangedModel(model, change))


class WrappedRows(TargetRows):
    """Rows that are the inner ones in everything."""

    def __init__(self, inner: TargetRows) -> None:
        super().__init__(
            inner.logits, inner.tree, inner._history, inner._n_prompt, inner._params, inner._eos_ids, inner._masks
        )


def with_rows(wrap: Callable[[TargetRows], TargetRows]) -> ChangeParts:
    """Give the verifier wrapped rows."""
    return lambda parts: replace(parts, rows=lambda *arguments: wrap(parts.rows(*arguments)))


class ChangedProposer(WrappedProposer):
    """A proposer that is asked with changed contexts and offers changed proposals."""

    def __init__(self, inner: Proposer, ask: ChangeContext = as_it_is, offer: ChangeProposal = as_it_is) -> None:
        super().__init__(inner)
        self._ask, self._offer = ask, offer

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One changed proposal per context."""
        proposals = self._inner.propose([self._ask(context) for context in contexts])
        return [self._offer(proposal) for proposal in proposals]


class _ChangedTogether(ChangedProposer):
    def __init__(self, inner: Proposer, change: ChangeProposals) -> None:
        super().__init__(inner)
        self._change = change

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        return self._change(contexts, super().propose(contexts))


def with_proposals(make: Callable[[], ChangeProposals]) -> ChangeParts:
    """Give the loop other proposals than the proposer made; `make` is called for each batch of requests."""
    return lambda parts: replace(parts, proposer=lambda inner: _ChangedTogether(parts.proposer(inner), make()))


def with_proposer(ask: ChangeContext = as_it_is, offer: ChangeProposal = as_it_is) -> ChangeParts:
    """Change the context that the proposer gets, or each proposal that it returns."""
    return lambda parts: replace(parts, proposer=lambda inner: ChangedProposer(parts.proposer(inner), ask, offer))


class BatchView:
    """The requests of a batch by row, as a wrapped proposer sees them come and go.

    steps: how many steps have begun.
    active: the active requests by row, in the order of the rows.
    finished: how many requests finished in the step before this one.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin a new batch."""
        self.steps = self.finished = self._ending = 0
        self.active: dict[int, Context] = {}
        self._holders: dict[int, list[Context]] = {}

    def admit(self, context: Context) -> None:
        """A request takes a row."""
        self._holders.setdefault(context.row, []).append(context)
        self.active = dict(sorted((self.active | {context.row: context}).items()))

    def step(self, contexts: Sequence[Context]) -> None:
        """A step begins with these requests."""
        self.steps, self.finished, self._ending = self.steps + 1, self._ending, 0
        self.active = {context.row: context for context in contexts}

    def release(self, row: int) -> None:
        """The request of a row has finished."""
        self._ending += 1
        self.active.pop(row, None)

    def of(self, history: Sequence[int]) -> Context | None:
        """The active request with this history, the same list throughout a request; None outside a batch."""
        return next((context for context in self.active.values() if context.history is history), None)

    def first(self, row: int) -> Context:
        """The first request that held the row."""
        return self._holders[row][0]

    def before(self, row: int) -> Context | None:
        """The request that held the row before its present one, with its whole history."""
        return self._holders[row][-2] if len(self._holders.get(row, ())) > 1 else None


class _Watched(ChangedProposer):
    def __init__(self, inner: Proposer, view: BatchView) -> None:
        super().__init__(inner)
        self._view = view

    def start(self, context: Context) -> None:
        self._view.admit(context)
        super().start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        self._view.step(contexts)
        return super().propose(contexts)

    def finish(self, row: int) -> None:
        self._view.release(row)
        super().finish(row)


def with_view(change: Callable[[EngineParts, BatchView], EngineParts]) -> ChangeParts:
    """Change parts with a view of the batch; it begins anew with each wrapped proposer."""

    def changed_parts(parts: EngineParts) -> EngineParts:
        view = BatchView()
        changed = change(parts, view)

        def proposer(inner: Proposer) -> Proposer:
            view.clear()
            return _Watched(changed.proposer(inner), view)

        return replace(changed, proposer=proposer)

    return changed_parts


def shortened(proposal: Proposal, count: int) -> Proposal:
    """The first `count` tokens of a chain, as if no more had been drafted."""
    return proposal if count >= len(proposal.tree) else with_tokens(proposal, proposal.tree.tokens[:count])


@dataclass(frozen=True, slots=True)
class RowInputs:
    """The inputs of the transform of one row; the recorded logits stay the model's.

    committed: prompt and committed tokens.
    path: the drafted tokens that lead to the row.
    drafted: True if a drafted token is tested against the row.
    """

    committed: Sequence[int]
    path: tuple[int, ...]
    n_prompt: int
    drafted: bool
    params: SamplingParams

    def without(self, off: Mapping[str, Any]) -> RowInputs:
        """The same inputs with some parameters at their neutral values."""
        return replace(self, params=replace(self.params, **off))


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one request.

    history: prompt and committed tokens; the same list throughout a request, and as long as the prompt in its first
        step.
    """

    history: Sequence[int]
    n_prompt: int
    tree: Tree


ChangeInputs = Callable[[RowInputs], RowInputs]
OfStep = Callable[[Step], ChangeInputs]


class _ChangedRows(WrappedRows):
    def __init__(self, inner: TargetRows, of_step: OfStep) -> None:
        super().__init__(inner)
        self._change = of_step(Step(self._history, self._n_prompt, self.tree))

    def __getitem__(self, row: int) -> TransformedRow:
        """The distribution after the path to the row's node, computed from the changed inputs."""
        if row not in self._done:
            path = path_tokens(self.tree, row - 1)
            drafted = row - 1 in self.tree.parents
            inputs = self._change(RowInputs(self._history, path, self._n_prompt, drafted, self._params))
            history = [*inputs.committed, *inputs.path]
            self._done[row] = transform(
                self.logits[row], history, self._n_prompt, inputs.params, self._eos_ids, self.allowed(row)
            )
        return self._done[row]


def with_inputs_by_step(of_step: OfStep) -> ChangeParts:
    """Change the inputs of rows; `of_step` is called once per step of each request."""
    return with_rows(lambda rows: _ChangedRows(rows, of_step))


def with_inputs(change: ChangeInputs) -> ChangeParts:
    """Change the inputs of rows in the same way in every step."""
    return with_inputs_by_step(lambda _step: change)


class StepEnds:
    """The last token of each step of every request, learned from the histories from which rows are made."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, ...]] = {}

    def before(self, step: Step) -> tuple[int, ...]:
        """The last tokens of the steps before this one, whose root is the newest token of the history."""
        known = self._ends.get(id(step.history), ())
        ends = () if len(step.history) == step.n_prompt else (*known, step.history[-1])
        self._ends[id(step.history)] = ends
        return ends
