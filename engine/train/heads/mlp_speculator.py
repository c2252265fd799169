"""Training of an MLP speculator (Wertheimer et al. 2404.19124) beside a frozen target.

Stage i reads the state of the stage before it and the text's next token, and learns
the target's own distribution of the token after; the losses of all stages are
summed. The paper trains on the text first and on text that the target wrote later,
with tokens as labels; drafts are verified against distributions, which also carry more information per position.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.lean_weights import LeanConfig
from engine.train.heads.head_layer import HeadStage, Teacher
from engine.train.passes import PositionLogits, agreements, weighted_loss
from engine.train.recipe import MLP_SPECULATOR, MlpSpeculatorRecipe

EPS = 1e-6


class MlpSpeculatorModule(nn.Module):
    """The trained tensors by their published names; with `tied` all stages share all but the first projection.

    Embeddings and output matrices begin at random, normal with variance 1 / I, and projections as torch has them.
    """

    def __init__(self, config: LeanConfig, recipe: MlpSpeculatorRecipe) -> None:
        super().__init__()
        torch.manual_seed(recipe.training.seed)
        self._recipe, inner, vocabulary = recipe, recipe.inner, config.vocabulary
        own = 1 if recipe.tied else recipe.stages
        self.emb = nn.ModuleList(nn.Embedding(vocabulary, inner) for _ in range(own))
        self.head = nn.ModuleList(nn.Linear(inner, vocabulary, bias=False) for _ in range(own))
        self.ln = nn.ModuleList(nn.LayerNorm(inner) for _ in range(own))
        sizes = [config.hidden, *[inner] * (recipe.stages - 1)][: own + 1]
        self.proj = nn.ModuleList(nn.Linear(size, inner, bias=False) for size in sizes)
        for item in (*self.emb, *self.head):
            nn.init.normal_(item.get_parameter("weight"), std=inner**-0.5)

    def enter(self, states: Tensor) -> Tensor:
        """The target's states [..., H] as the first stage takes them."""
        return _normed(states) / math.sqrt(2) if self._recipe.scale_input else states

    def advance(self, stage: int, states: Tensor, tokens: Tensor) -> Tensor:
        """[..., I] the next states from [..., H or I], after tokens [...]."""
        keep = 0.5 ** (0.5 / self._recipe.stages)
        weight = math.sqrt((1 - keep**2) * self._recipe.inner / 2)
        project = self.proj[min(stage, len(self.proj) - 1)]
        mixed = keep * project(states).float() + weight * _shared(self.emb, stage)(tokens)
        norm = _shared(self.ln, stage)
        return F.gelu(_normed(mixed) * norm.get_parameter("weight") + norm.get_parameter("bias"))

    def logits(self, stage: int, states: Tensor) -> Tensor:
        """[..., V]."""
        said: Tensor = _shared(self.head, stage)(states)
        return said.float()


def _normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def _shared(copies: nn.ModuleList, stage: int) -> nn.Module:
    return copies[min(stage, len(copies) - 1)]


def unroll(module: MlpSpeculatorModule, teacher: Teacher, tokens: Tensor, stages: int) -> Iterator[PositionLogits]:
    """One pass per stage over windows [rows, T]: every stage reads the text's own tokens."""
    lesson, count = teacher.lesson(tokens), tokens.shape[1] - stages
    states = module.enter(lesson.hidden[teacher.config.layers][:, :count])
    for stage, (_, truth) in enumerate(lesson.ahead(stages)):
        states = module.advance(stage, states, tokens[:, 1 + stage : 1 + stage + count])
        yield PositionLogits(truth, module.logits(stage, states))


def loss_of(module: MlpSpeculatorModule, teacher: Teacher, tokens: Tensor, plan: MlpSpeculatorRecipe) -> Tensor:
    """Of windows [rows, window + 1]: cross-entropy to the target's softmax, summed over the stages."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return weighted_loss(unroll(module, teacher, tokens, plan.stages), [1.0] * plan.stages)


def train_mlp_speculator(stage: HeadStage, plan: MlpSpeculatorRecipe = MLP_SPECULATOR) -> None:
    """Train a speculator and write it as IBM's accelerators are published."""
    teacher = stage.teacher
    module, window = MlpSpeculatorModule(teacher.config, plan), min(256, teacher.config.context)
    stage.train(
        module,
        plan.training,
        loss=lambda tokens: loss_of(module, teacher, tokens, plan),
        measure=lambda: agreements(stage.corpus, window, lambda tokens: unroll(module, teacher, tokens, plan.stages)),
    )
    stage.write(document(teacher, plan), {f"speculator.{name}": item for name, item in module.state_dict().items()})


def document(teacher: Teacher, plan: MlpSpeculatorRecipe) -> dict[str, Any]:
    """Its config.json."""
    return {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "vocab_size": teacher.config.vocabulary,
        "emb_dim": teacher.config.hidden,
        "inner_dim": plan.inner,
        "n_predict": plan.stages,
        # one candidate per stage: for engines that draft trees
        "n_candidates": 1,
        "top_k_tokens_per_head": [1] * plan.stages,
        "tie_weights": plan.tied,
        "scale_input": plan.scale_input,
        "dtype": "bfloat16",
    }
