"""Multi-token prediction: modules trained with the target draft from its last hidden state.

Position t of a module holds the state after token t and token t + 1. Module 0 reads the target's states; module k reads
at position t the output of module k - 1 at position t - 1. The draft's step s goes through module s mod (number of
modules), at the position after the step before. Committed positions are read once, with the true tokens; the next draft
overwrites the positions of a draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.core.types import Proposal, StepOutcome
from engine.heads.decoder import MtpModule
from engine.heads.formats.mtp import BEFORE_NORM
from engine.models.interface import Placement, chain_placement, to_numpy
from engine.models.lean_weights import read_config
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings, limited
from engine.proposers.interface import Context, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.trained.fitted_head import FittedHead, fitted_head


@dataclass(frozen=True, slots=True)
class _Run:
    """States [n, H] for n consecutive positions of one module, from position `first` on."""

    first: int
    states: Tensor

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.first + len(self.states)

    def then(self, states: Tensor) -> _Run:
        """With more states behind."""
        return _Run(self.first, torch.cat([self.states, states]))

    def since(self, position: int) -> _Run:
        """The states at `position` and later."""
        first = max(self.first, position)
        return _Run(first, self.states[first - self.first :])

    def until(self, position: int) -> Tensor:
        """[m, H] the states before `position`."""
        return self.states[: max(0, position - self.first)]


@dataclass(slots=True)
class _Drafting:
    """One row in one step: what was drawn, and the outputs of the newest round."""

    draft: ChainDraft
    outputs: _Run | None = None

    @property
    def committed(self) -> int:
        """Positions whose next token is committed: all before this one."""
        return len(self.draft.context.history) - 1


class MtpProposer:
    """Drafts chains with the modules of one head.

    `_waiting[row][k]` are true states that module k has not read with a committed token yet.
    """

    def __init__(self, parts: ProposerParts, fitted: FittedHead, stop_below: float) -> None:
        target, config = fitted.model, read_config(fitted.head.config, f"{fitted.head.layout} head")
        count = fitted.head.settings["modules"]
        self._modules = [MtpModule(config, _own(fitted, k), target.weights) for k in range(count)]
        self._capacity = min(parts.capacity, config.context)
        self._caches = [module.new_cache(parts.rows, self._capacity) for module in self._modules]
        self._empty = target.weights.embedding[:0]
        self._waiting: list[list[_Run]] = [self._nothing() for _ in range(parts.rows)]
        self._layer = target.config.layers
        self._norm = _final_norm(fitted) if fitted.head.settings.get(BEFORE_NORM) else None
        self._how = DrawSettings.of(parts, stop_below)
        self.facts = ProposerFacts(
            "mtp",
            hidden=(self._layer,),
            options={"stop_below": stop_below},
            steady=None if stop_below else SteadyDrafts(config.context),
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> MtpProposer:
        """From a head and the option `stop_below`."""
        options = read("mtp", parts.options)
        return cls(parts, fitted_head("mtp", parts), options["stop_below"])

    def _nothing(self) -> list[_Run]:
        # position k is the first with a state of module k - 1 before it
        return [_Run(k, self._empty) for k in range(len(self._modules))]

    def start(self, context: Context) -> None:
        """Keep the prompt's states; the first round reads them."""
        self._waiting[context.row] = self._nothing()
        self._keep(context, len(context.history) - 1)

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Keep the states of the root and of the accepted tokens."""
        self._keep(context, len(verdict.emitted))

    def _keep(self, context: Context, most: int) -> None:
        states = context.read.hidden.get(self._layer, self._empty)
        waiting = self._waiting[context.row]
        # a state and its norm's input differ by the norm's weights and a factor, which the module's own norm takes out
        waiting[0] = waiting[0].then(states[:most] if self._norm is None else states[:most] / self._norm)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of up to the rows' budgets; none before the first state, or beyond the head's context."""
        rows = {context.row: _Drafting(ChainDraft(limited(context, self._room(context)))) for context in contexts}
        step = 0
        while drafting := {row: item for row, item in rows.items() if item.draft.unread}:
            self._round(step, drafting)
            step += 1
        return [rows[context.row].draft.proposal() for context in contexts]

    def _room(self, context: Context) -> int:
        ready = len(self._waiting[context.row][0].states) > 0
        return self._capacity + 2 - len(context.history) if ready else 0

    def _round(self, step: int, drafting: Mapping[int, _Drafting]) -> None:
        """One forward of one module, and the next token of every row."""
        k = step % len(self._modules)
        inputs = {row: self._inputs(step, row, drafting[row]) for row in sorted(drafting)}
        placement = self._place(step, inputs, drafting)
        fed = torch.cat([run.states for run in inputs.values()])
        outputs = self._modules[k].forward(self._caches[k], placement, fed)
        parts = torch.split(outputs, [len(run.states) for run in inputs.values()])
        logits = self._modules[k].logits(torch.stack([part[-1] for part in parts]))
        for (row, run), part, scores in zip(inputs.items(), parts, logits, strict=True):
            item = drafting[row]
            # the output at position t is the next module's state at position t + 1
            item.outputs = _Run(run.first + 1, part)
            if step == k:
                self._settle(k, row, item)
            item.draft.extend(to_numpy(scores), self._how)

    def _inputs(self, step: int, row: int, item: _Drafting) -> _Run:
        """A module's first round reads its waiting states, followed by the draft's own states."""
        waiting = self._waiting[row]
        if item.outputs is None:
            return waiting[0]
        if step < len(self._modules):
            return waiting[step].then(item.outputs.since(item.committed + 1).states)
        return item.outputs.since(item.outputs.end - 1)

    def _settle(self, k: int, row: int, item: _Drafting) -> None:
        """Module k has read all positions whose next token is committed; its true outputs wait for the next module."""
        waiting, outputs = self._waiting[row], item.outputs
        assert outputs is not None
        waiting[k] = waiting[k].since(item.committed)
        if k + 1 < len(waiting):
            waiting[k + 1] = waiting[k + 1].then(outputs.until(item.committed + 1))

    def _place(self, step: int, inputs: Mapping[int, _Run], drafting: Mapping[int, _Drafting]) -> Placement:
        rows = range(1 + max(inputs))
        starts = [inputs[row].first if row in inputs else 0 for row in rows]
        tokens = [
            drafting[row].draft.history[inputs[row].first + 1 : inputs[row].end + 1] if row in inputs else []
            for row in rows
        ]
        placement = chain_placement(tokens, starts, self._caches[0].trash)
        if len(self._modules) == 1:
            return placement
        ends = [drafting[row].committed if row in drafting else 0 for row in rows]
        return replace(placement, branches=_seen(placement, step % len(self._modules), len(self._modules), ends))

    def finish(self, row: int) -> None:
        """Forget the row."""
        self._waiting[row] = self._nothing()


def _seen(placement: Placement, k: int, modules: int, ends: Sequence[int]) -> Tensor:
    """[B, T, S] the columns that module k has written and that come no later.

    They are all from position k to `ends` + k - 1, which its first round reads, and then every `modules`-th.
    """
    columns = torch.arange(placement.span)
    last = torch.from_numpy(np.array(ends))[:, None] + k - 1
    written = (columns >= k) & ((columns <= last) | ((columns - last) % modules == 0))
    seen = written[:, None, :] & placement.visible
    # padding has to see something
    seen[:, :, 0] |= ~seen.any(2)
    return seen


def _final_norm(fitted: FittedHead) -> Tensor:
    """[H] weights of the target's final norm; raises ModelError: one is 0, which removes that part of the state."""
    weights = fitted.model.weights.norm
    if not bool(weights.all()):
        raise ModelError(
            f"{fitted.head.layout} head: it reads states from before the target's final norm, which has weights of 0; "
            "use a head of another layout"
        )
    return weights


def _own(fitted: FittedHead, k: int) -> dict[str, Tensor]:
    prefix = f"modules.{k}."
    result = {name: tensor for name, tensor in fitted.head.tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in result.items()}
