"""Heads that are matrices over one hidden state of the target: the fit to their target, and the rows' states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from engine.core.errors import InvalidRequest, ModelError, ModelNeeded
from engine.core.types import StepOutcome
from engine.heads.checkpoint import HeadCheckpoint
from engine.models.decoder.lean import LeanModel
from engine.proposers.interface import Context, ProposerParts

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class FittedHead:
    """A head and the target that it was made for: it drafts in the target's dtype and arithmetic, on its device."""

    head: HeadCheckpoint
    model: LeanModel

    def tensor(self, name: str) -> Tensor:
        """A tensor of the head in the target's dtype."""
        return self.head.tensors[name].to(self.model.dtype)

    def prepared(self, names: Sequence[str], prepare: Callable[[str], P]) -> list[P]:
        """A result of `prepare` for each name of a tensor; names that share a tensor share the result."""
        results: dict[int, P] = {}
        for name in names:
            key = id(self.head.tensors[name])
            results[key] = results[key] if key in results else prepare(name)
        return [results[id(self.head.tensors[name])] for name in names]


def fitted_head(kind: str, parts: ProposerParts, families: tuple[str, ...] = ()) -> FittedHead:
    """The head and its target, if a proposer of this kind can draft with them.

    Args:
        kind: the proposer's key. The head's settings have `hidden` and `vocabulary`.
        parts: what the proposer is built from.
        families: of heads that it takes; by default the one of its own name.

    Raises:
        ModelNeeded: there is no head.
        InvalidRequest: a head of another family, or a target that is not a lean model.
        ModelError: a head for another hidden size or vocabulary; names both numbers.
    """
    head = parts.head
    if head is None:
        raise ModelNeeded(f"proposer {kind} needs a trained head")
    if head.family not in (families or (kind,)):
        raise InvalidRequest(f"proposer {kind} cannot draft with a {head.layout} head; use proposer {head.family}")
    target = None if parts.target is None else parts.target.model
    if not isinstance(target, LeanModel):
        raise InvalidRequest(f"proposer {kind} drafts from the target's hidden states; use loader: lean for it")
    pairs = (("hidden size", "hidden", target.config.hidden), ("vocabulary", "vocabulary", target.config.vocabulary))
    for what, setting, theirs in pairs:
        if head.settings[setting] != theirs:
            raise ModelError(
                f"{head.layout} head: its {what} is {head.settings[setting]}, the target's is {theirs}; "
                "use the target's own head"
            )
    # names that share a tensor share its copy too
    copies = {id(tensor): tensor.to(target.device) for tensor in head.tensors.values()}
    tensors = {name: copies[id(tensor)] for name, tensor in head.tensors.items()}
    return FittedHead(replace(head, tensors=tensors), target)


class LastStateProposer:
    """Keeps of each row the hidden state of the newest token that the target has read: the one before the newest.

    The first drafted token continues it. A row with a prompt of one token has no state until its first step.
    """

    def __init__(self, layer: int) -> None:
        self._layer = layer
        self._states: dict[int, Tensor] = {}

    def start(self, context: Context) -> None:
        """Discard the row's state; of a prompt, all tokens but the last have been read."""
        self._states.pop(context.row, None)
        self._keep(context)

    def observe(self, context: Context, verdict: StepOutcome) -> None:  # noqa: ARG002 - the states suffice
        """Keep the state of the last accepted token, or of the root."""
        self._keep(context)

    def _keep(self, context: Context) -> None:
        """Keep the last of the newly read tokens; a copy, for the model may use its own again."""
        read = context.read.hidden.get(self._layer)
        if read is not None and len(read):
            self._states[context.row] = read[-1].clone()

    def knows(self, row: int) -> bool:
        """True if the row has a state."""
        return row in self._states

    def stacked(self, rows: list[int]) -> Tensor:
        """[N, H] of the named rows."""
        return torch.stack([self._states[row] for row in rows])

    def finish(self, row: int) -> None:
        """Forget the row."""
        self._states.pop(row, None)
