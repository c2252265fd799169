"""Training of an EAGLE-3 head (Li et al. 2503.01840): what it will read while drafting it reads while training.

The layer is unrolled on its own outputs; every pass is asked for the target's
distribution on the draft vocabulary, later ones with less weight. There is no
loss on features. Embedding and target stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.heads.decoder import LayerForm
from engine.train.corpus import Corpus
from engine.train.head_layer import HeadLayer, Teacher, Unrolled, agreement
from engine.train.held_out import held_out_windows
from engine.train.recipe import Eagle3Recipe


class Eagle3Head(nn.Module):
    """The trained tensors by their published names; `kept` [draft vocabulary] are the target's ids, ascending."""

    def __init__(self, teacher: Teacher, kept: Tensor, recipe: Eagle3Recipe) -> None:
        super().__init__()
        torch.manual_seed(recipe.training.seed)
        config = replace(teacher.config, ffn=recipe.ffn, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False)
        self.kept = kept
        self.fc = nn.Linear(len(recipe.aux_layers) * config.hidden, config.hidden, bias=False)
        self.midlayer = HeadLayer(config, LayerForm(("input_layernorm", "hidden_norm")))
        self.norm = nn.RMSNorm(config.hidden, config.eps)
        self.lm_head = nn.Linear(config.hidden, len(kept), bias=False)
        # as good a start as there is: what the target says of these tokens
        self.lm_head.weight.data.copy_(teacher.head[kept])

    @property
    def d2t(self) -> Tensor:
        """[draft vocabulary] int64: what to add to a draft id to get the target's."""
        return self.kept - torch.arange(len(self.kept))


def draft_vocabulary(corpus: Corpus, size: int, vocabulary: int) -> Tensor:
    """The `size` most frequent token ids of the corpus, ascending; of equally frequent ones the lower ids."""
    streams = np.concatenate([corpus.code, corpus.dialogue])
    counts = np.bincount(streams, minlength=vocabulary)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))


@dataclass(frozen=True, slots=True)
class Pass:
    """One unrolled pass: the target's logits and the head's, [rows, T, draft vocabulary] each.

    inside: [rows, T] whether the target's favourite is in the draft vocabulary.
    """

    target: Tensor
    draft: Tensor
    inside: Tensor


def unroll(head: Eagle3Head, teacher: Teacher, tokens: Tensor, recipe: Eagle3Recipe) -> Iterator[Pass]:
    """The passes over windows [rows, T]."""
    lesson, unrolled = teacher.lesson(tokens), Unrolled()
    count = tokens.shape[1] - recipe.unroll
    state = head.fc(torch.cat([lesson.hidden[layer][:, :count] for layer in recipe.aux_layers], -1)).float()
    known = torch.zeros(lesson.logits.shape[-1], dtype=torch.bool)
    known[head.kept] = True
    for step in range(recipe.unroll):
        after = slice(1 + step, 1 + step + count)
        state = head.midlayer(torch.cat([lesson.embedded[:, after], state], -1), unrolled).float()
        truth = lesson.logits[:, after]
        yield Pass(truth[..., head.kept], head.lm_head(head.norm(state)).float(), known[truth.argmax(-1)])


def loss_of(head: Eagle3Head, teacher: Teacher, tokens: Tensor, recipe: Eagle3Recipe) -> Tensor:
    """Of windows [rows, window + 1]."""
    total = torch.zeros(())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step, each in enumerate(unroll(head, teacher, tokens, recipe)):
            said = -(each.target.softmax(-1) * F.log_softmax(each.draft, -1)).sum(-1)
            total = total + recipe.decay**step * (said * each.inside).sum() / each.inside.sum().clamp(min=1)
    return total


@torch.no_grad()
def measured(head: Eagle3Head, teacher: Teacher, corpus: Corpus, recipe: Eagle3Recipe) -> Mapping[str, float]:
    """How often a drawn token would be accepted on held-out text were all tokens drafted, by drafted position."""
    shares = [0.0] * recipe.unroll
    windows = held_out_windows(corpus, recipe.training.window)
    for tokens in windows.values():
        for step, each in enumerate(unroll(head, teacher, tokens, recipe)):
            shares[step] += agreement(each.target, each.draft) / len(windows)
    return {f"position {step + 1}": share for step, share in enumerate(shares)}
