"""Training of an EAGLE-1 head (Li et al. 2401.15077): the next feature from this one and the next token.

The loss is smooth L1 on the features plus a tenth of the cross-entropy to the
target's own distribution; uniform noise on the features that the head reads
stands for its own errors. Embedding and output matrix are the target's and stay
as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.heads.decoder import LayerForm
from engine.train.corpus import Corpus
from engine.train.head_layer import HeadLayer, Lesson, Teacher, Unrolled, agreement
from engine.train.held_out import held_out_windows
from engine.train.recipe import EagleRecipe


class EagleHead(nn.Module):
    """The trained tensors, by their published names."""

    def __init__(self, teacher: Teacher, recipe: EagleRecipe) -> None:
        super().__init__()
        torch.manual_seed(recipe.training.seed)
        config = replace(teacher.config, ffn=recipe.ffn, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False)
        self.fc = nn.Linear(2 * config.hidden, config.hidden, bias=False)
        self.layers = nn.ModuleList([HeadLayer(config, LayerForm((None,)))])

    def forward(self, embedded: Tensor, features: Tensor, unrolled: Unrolled) -> Tensor:
        """[rows, T, hidden] each -> the features that follow."""
        out: Tensor = self.layers[0](self.fc(torch.cat([embedded, features], -1)), unrolled)
        return out.float()


def loss_of(head: EagleHead, teacher: Teacher, tokens: Tensor, recipe: EagleRecipe) -> Tensor:
    """Of windows [rows, window + 1]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lesson = teacher.lesson(tokens[:, :-1])
        features = lesson.hidden[teacher.config.layers]
        noise = (torch.rand_like(features[:, :-1]) * 2 - 1) * recipe.noise
        predicted = head(lesson.embedded[:, 1:], features[:, :-1] + noise, Unrolled())
        logits = F.linear(predicted, teacher.head).float()
    near = F.smooth_l1_loss(predicted, features[:, 1:])
    said = F.cross_entropy(logits.flatten(0, 1), lesson.logits[:, 1:].flatten(0, 1).softmax(-1))
    return near + recipe.token_weight * said


@torch.no_grad()
def measured(
    head: EagleHead, teacher: Teacher, corpus: Corpus, recipe: EagleRecipe, steps: int = 3
) -> Mapping[str, float]:
    """How often a token drawn by the head would be accepted on held-out text, by drafted position."""
    shares = [0.0] * steps
    windows = held_out_windows(corpus, recipe.training.window)
    for tokens in windows.values():
        lesson, unrolled = teacher.lesson(tokens), Unrolled()
        count = tokens.shape[1] - steps
        state = lesson.hidden[teacher.config.layers][:, :count]
        for step in range(steps):
            state = head(_shifted(lesson, step, count), state, unrolled)
            truth = lesson.logits[:, 1 + step : 1 + step + count]
            shares[step] += agreement(truth, F.linear(state, teacher.head)) / len(windows)
    return {f"position {step + 1}": share for step, share in enumerate(shares)}


def _shifted(lesson: Lesson, step: int, count: int) -> Tensor:
    return lesson.embedded[:, 1 + step : 1 + step + count]
