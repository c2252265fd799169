"""Training of an EAGLE-3 head (Li et al. 2503.01840): the head reads the same inputs in training as in drafting.

The layer is unrolled on its own outputs; every pass learns the target's distribution on the draft vocabulary, later
ones with less weight. There is no loss on features. Embedding and target stay as they are.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from engine.heads.decoder import LayerForm
from engine.train.corpus import Corpus, most_frequent
from engine.train.heads.head_layer import HeadLayer, HeadStage, Teacher, UnrolledCache
from engine.train.passes import PositionLogits, agreements, weighted_loss
from engine.train.recipe import EAGLE3_HEAD, Eagle3Recipe


class Eagle3Head(nn.Module):
    """The trained tensors by their published names; `kept` [draft vocabulary] are the target's ids, ascending."""

    def __init__(self, teacher: Teacher, kept: Tensor, recipe: Eagle3Recipe) -> None:
        super().__init__()
        torch.manual_seed(recipe.training.seed)
        config = teacher.layer_sizes(recipe.ffn)
        self.kept = kept
        self.fc = nn.Linear(len(recipe.aux_layers) * config.hidden, config.hidden, bias=False)
        self.midlayer = HeadLayer(config, LayerForm(("input_layernorm", "hidden_norm")))
        self.norm = nn.RMSNorm(config.hidden, config.eps)
        self.lm_head = nn.Linear(config.hidden, len(kept), bias=False)
        # the best available start: the target's output rows of these tokens
        self.lm_head.weight.data.copy_(teacher.head[kept])

    @property
    def d2t(self) -> Tensor:
        """[draft vocabulary] int64: the offset from a draft id to the target's id."""
        return self.kept - torch.arange(len(self.kept))


def draft_vocabulary(corpus: Corpus, size: int, vocabulary: int) -> Tensor:
    """The `size` most frequent token ids of the corpus, ascending; of equally frequent ones the lower ids."""
    streams = np.concatenate([corpus.code, corpus.dialogue])
    counts = np.bincount(streams, minlength=vocabulary)
    return torch.from_numpy(most_frequent(counts, size))


def unroll(head: Eagle3Head, teacher: Teacher, tokens: Tensor, recipe: Eagle3Recipe) -> Iterator[PositionLogits]:
    """The passes over windows [rows, T], on the draft vocabulary."""
    lesson, unrolled = teacher.lesson(tokens), UnrolledCache()
    count = tokens.shape[1] - recipe.unroll
    state = head.fc(torch.cat([lesson.hidden[layer][:, :count] for layer in recipe.aux_layers], -1)).float()
    known = torch.zeros(lesson.logits.shape[-1], dtype=torch.bool)
    known[head.kept] = True
    for embedded, truth in lesson.ahead(recipe.unroll):
        state = head.midlayer(torch.cat([embedded, state], -1), unrolled).float()
        yield PositionLogits(truth[..., head.kept], head.lm_head(head.norm(state)).float(), known[truth.argmax(-1)])


def loss_of(head: Eagle3Head, teacher: Teacher, tokens: Tensor, recipe: Eagle3Recipe) -> Tensor:
    """Of windows [rows, window + 1]."""
    weights = [recipe.decay**step for step in range(recipe.unroll)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return weighted_loss(unroll(head, teacher, tokens, recipe), weights)


def train_eagle3(stage: HeadStage, plan: Eagle3Recipe = EAGLE3_HEAD) -> None:
    """Train a head and write it in the published layout."""
    teacher, corpus = stage.teacher, stage.corpus
    plan = replace(plan, aux_layers=fitting_layers(plan.aux_layers, teacher.config.layers))
    head = Eagle3Head(teacher, draft_vocabulary(corpus, plan.draft_vocabulary, teacher.config.vocabulary), plan)
    stage.train(
        head,
        plan.training,
        loss=lambda tokens: loss_of(head, teacher, tokens, plan),
        measure=lambda: agreements(corpus, plan.training.window, lambda tokens: unroll(head, teacher, tokens, plan)),
    )
    t2d = torch.zeros(teacher.config.vocabulary, dtype=torch.bool)
    t2d[head.kept] = True
    config = stage.llama_document(plan.ffn) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(head.kept),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(plan.aux_layers), "use_aux_hidden_state": True},
    }
    stage.write(config, head.state_dict(), d2t=head.d2t, t2d=t2d)


def fitting_layers(wanted: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """The recipe's layers if the target is as shallow as the bundled one, else the published choice."""
    return wanted if layers <= max(wanted) + 1 else (2, layers // 2, layers - 3)
