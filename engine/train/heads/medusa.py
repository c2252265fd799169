"""Training of Medusa heads (Cai et al. 2401.10774) beside a frozen target ("Medusa-1").

Head i at position t learns the target's own distribution of token t + 2 + i, which the target gives at position t + 1 +
i: cross-entropy to it, summed over the heads, without weights. The paper takes the text's token as the label; drafts
are verified against the target's distribution, which also carries more information per position.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.train.corpus import Corpus, most_frequent
from engine.train.heads.head_layer import HeadStage, Teacher
from engine.train.passes import PositionLogits, agreements, weighted_loss
from engine.train.recipe import MEDUSA_HEADS, MedusaRecipe


class ResidualBlock(nn.Module):
    """The layers of one head: x + silu(W x), one after the other, the identity at first."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
        for layer in self.layers:
            nn.init.zeros_(layer.get_parameter("weight"))

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class MedusaModule(nn.Module):
    """The trained tensors, by their published names; output matrices begin as the target's.

    Args:
        matrix: [V, H] the target's output matrix.
        tokens: [V'] the tokens that the heads know.
        recipe: how many heads of how many layers.
    """

    def __init__(self, matrix: Tensor, tokens: Tensor, recipe: MedusaRecipe) -> None:
        super().__init__()
        self.tokens = tokens
        self.blocks = nn.ModuleList(ResidualBlock(matrix.shape[1], recipe.layers) for _ in range(recipe.heads))
        self.lm_heads = nn.ModuleList(nn.Linear(matrix.shape[1], len(tokens), bias=False) for _ in range(recipe.heads))
        with torch.no_grad():
            for head in self.lm_heads:
                head.get_parameter("weight").copy_(matrix[tokens])

    def forward(self, states: Tensor) -> list[Tensor]:
        """[..., H] -> one [..., V'] per head."""
        return [head(block(states)) for block, head in zip(self.blocks, self.lm_heads, strict=True)]


def train_medusa(stage: HeadStage, plan: MedusaRecipe = MEDUSA_HEADS) -> None:
    """Train heads and write them as vLLM reads them."""
    teacher, corpus = stage.teacher, stage.corpus
    module = MedusaModule(teacher.head, frequent(corpus, plan, teacher.config.vocabulary), plan)
    stage.train(
        module,
        plan.training,
        loss=lambda tokens: loss_of(module, teacher, tokens),
        measure=lambda: agreements(corpus, 256, lambda tokens: passes(module, teacher, tokens)),
    )
    known = {"token_map": module.tokens} if len(module.tokens) < teacher.config.vocabulary else {}
    stage.write(document(teacher, plan, len(module.tokens)), module.state_dict(), **known)


def frequent(corpus: Corpus, plan: MedusaRecipe, vocabulary: int) -> Tensor:
    """[V'] the most frequent tokens in ascending order; each part of the corpus counts as much as it is trained on."""
    share = plan.training.code_share
    code, dialogue = (np.bincount(item, minlength=vocabulary) / len(item) for item in (corpus.code, corpus.dialogue))
    weights = share * code + (1 - share) * dialogue
    shares = np.sort(weights)[::-1].cumsum()
    count = vocabulary if plan.known_share >= 1 else int(np.searchsorted(shares, plan.known_share)) + 1
    return torch.from_numpy(most_frequent(weights, count))


def passes(module: MedusaModule, teacher: Teacher, tokens: Tensor) -> Iterator[PositionLogits]:
    """One per head over windows [rows, T], on the known tokens."""
    lesson = teacher.lesson(tokens)
    for head, logits in enumerate(module(lesson.hidden[teacher.config.layers])):
        ahead = 1 + head
        yield PositionLogits(lesson.logits[:, ahead:, module.tokens], logits[:, :-ahead].float())


def loss_of(module: MedusaModule, teacher: Teacher, tokens: Tensor) -> Tensor:
    """Cross-entropy to the target's distributions over the known tokens, summed over the heads."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return weighted_loss(passes(module, teacher, tokens), [1.0] * len(module.blocks))


def document(teacher: Teacher, plan: MedusaRecipe, known: int) -> dict[str, Any]:
    """A config.json for heads over `known` tokens."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": teacher.config.hidden,
        "num_heads": plan.heads,
        "num_hidden_layers": plan.layers,
        "vocab_size": teacher.config.vocabulary,
        "truncated_vocab_size": known,
        "medusa_fc_bias": False,
        "original_lm_head": False,
        "dtype": "bfloat16",
    }
