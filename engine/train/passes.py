"""A head's logits next to the target's, by drafted position: the loss and the measure of most trainers.

Windows of the held-out text, for measuring heads while they are trained.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.train.corpus import Corpus


def held_out_windows(corpus: Corpus, window: int, windows: int = 3) -> dict[str, Tensor]:
    """By domain its first windows [n, window]; a domain shorter than one window is left out."""
    result = {}
    for domain, tokens in corpus.held_out.items():
        count = min(windows, len(tokens) // window)
        if count:
            result[domain] = torch.from_numpy(tokens[: count * window].reshape(count, window).astype(np.int64))
    return result


@dataclass(frozen=True, slots=True)
class PositionLogits:
    """One drafted position: the logits of the target and of the head, [..., V'] each, over the head's vocabulary.

    inside: [...] whether the target's favourite is in that vocabulary; None where it holds all tokens.
    """

    target: Tensor
    draft: Tensor
    inside: Tensor | None = None

    def entropy(self) -> Tensor:
        """[...] the cross-entropy of the head's softmax to the target's, in nats."""
        return -(self.target.softmax(-1) * F.log_softmax(self.draft, -1)).sum(-1)

    def loss(self, weight: float = 1.0) -> Tensor:
        """The mean cross-entropy over the rows that count, times a weight."""
        if self.inside is None:
            return weight * self.entropy().mean()
        return weight * (self.entropy() * self.inside).sum() / self.inside.sum().clamp(min=1)

    def agreement(self) -> float:
        """The mean over rows of sum_x min(p, q): how often a drawn token is accepted."""
        p, q = self.target.softmax(-1), self.draft.softmax(-1)
        return torch.minimum(p, q).sum(-1).mean().item()

    def same_favourite(self) -> float:
        """The share of rows in which the most likely token is the same."""
        return (self.target.argmax(-1) == self.draft.argmax(-1)).float().mean().item()


def weighted_loss(passes: Iterable[PositionLogits], weights: Sequence[float]) -> Tensor:
    """The sum of the passes' losses, each times its weight."""
    total = torch.zeros(())
    for weight, item in zip(weights, passes, strict=True):
        total = total + item.loss(weight)
    return total


@torch.no_grad()
def agreements(
    corpus: Corpus, window: int, passes: Callable[[Tensor], Iterable[PositionLogits]]
) -> Mapping[str, float]:
    """The acceptance of drawn tokens on held-out text if all tokens were drafted, by drafted position.

    `passes` makes those of windows [rows, window]; domains count equally.
    """
    domains = [
        [logits.agreement() for logits in passes(tokens)] for tokens in held_out_windows(corpus, window).values()
    ]
    return {f"position {i + 1}": sum(result) / len(result) for i, result in enumerate(zip(*domains, strict=True))}
