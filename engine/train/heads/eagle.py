"""Training of an EAGLE-1 head (Li et al. 2401.15077): the next feature from this one and the next token.

The loss is smooth L1 on the features plus a tenth of the cross-entropy to the target's own distribution; uniform noise
on the features that the head reads stands for its own errors. Embedding and output matrix are the target's and stay as
they are.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.heads.decoder import LayerForm
from engine.train.heads.head_layer import HeadLayer, HeadStage, Teacher, UnrolledCache
from engine.train.passes import PositionLogits, agreements
from engine.train.recipe import EAGLE_HEAD, EagleRecipe


class EagleHead(nn.Module):
    """The trained tensors, by their published names."""

    def __init__(self, teacher: Teacher, recipe: EagleRecipe) -> None:
        super().__init__()
        torch.manual_seed(recipe.training.seed)
        config = teacher.layer_sizes(recipe.ffn)
        self.fc = nn.Linear(2 * config.hidden, config.hidden, bias=False)
        self.layers = nn.ModuleList([HeadLayer(config, LayerForm((None,)))])

    def forward(self, embedded: Tensor, features: Tensor, unrolled: UnrolledCache) -> Tensor:
        """[rows, T, hidden] each -> the features that follow."""
        out: Tensor = self.layers[0](self.fc(torch.cat([embedded, features], -1)), unrolled)
        return out.float()


def loss_of(head: EagleHead, teacher: Teacher, tokens: Tensor, recipe: EagleRecipe) -> Tensor:
    """Of windows [rows, window + 1]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lesson = teacher.lesson(tokens[:, :-1])
        features = lesson.hidden[teacher.config.layers]
        noise = (torch.rand_like(features[:, :-1]) * 2 - 1) * recipe.noise
        predicted = head(lesson.embedded[:, 1:], features[:, :-1] + noise, UnrolledCache())
        logits = F.linear(predicted, teacher.head).float()
    near = F.smooth_l1_loss(predicted, features[:, 1:])
    said = F.cross_entropy(logits.flatten(0, 1), lesson.logits[:, 1:].flatten(0, 1).softmax(-1))
    return near + recipe.token_weight * said


def unroll(head: EagleHead, teacher: Teacher, tokens: Tensor, steps: int = 3) -> Iterator[PositionLogits]:
    """Passes on the head's own outputs over windows [rows, T]; for measuring only, not for training."""
    lesson, unrolled = teacher.lesson(tokens), UnrolledCache()
    state = lesson.hidden[teacher.config.layers][:, : tokens.shape[1] - steps]
    for embedded, truth in lesson.ahead(steps):
        state = head(embedded, state, unrolled)
        yield PositionLogits(truth, F.linear(state, teacher.head))


def train_eagle(stage: HeadStage, plan: EagleRecipe = EAGLE_HEAD) -> None:
    """Train a head and write it in the published layout."""
    teacher = stage.teacher
    head = EagleHead(teacher, plan)
    stage.train(
        head,
        plan.training,
        loss=lambda tokens: loss_of(head, teacher, tokens, plan),
        measure=lambda: agreements(stage.corpus, plan.training.window, lambda tokens: unroll(head, teacher, tokens)),
    )
    config = stage.llama_document(plan.ffn) | {"architectures": ["EagleLlamaForCausalLM"], "bias": False}
    stage.write(config, head.state_dict())
