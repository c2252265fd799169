"""Training of one multi-token prediction module that drafts several tokens (FastMTP, arXiv 2509.18362).

The module is unrolled on its own outputs, as it will be while drafting; pass k weighs decay^k, normalised over the
passes. It learns the target's distribution. Target, embedding and output matrix stay as they are.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.heads.decoder import LayerForm
from engine.heads.formats.mtp import COUNT, DEEPSEEK_ARCHITECTURE
from engine.train.heads.head_layer import HeadLayer, HeadStage, Teacher, UnrolledCache
from engine.train.passes import PositionLogits, agreements, weighted_loss
from engine.train.recipe import MTP_HEAD, UnrolledRecipe


class MtpHead(nn.Module):
    """The trained module."""

    def __init__(self, teacher: Teacher, plan: UnrolledRecipe) -> None:
        super().__init__()
        torch.manual_seed(plan.training.seed)
        config = teacher.layer_sizes(plan.ffn)
        self.enorm, self.hnorm = (nn.RMSNorm(config.hidden, config.eps) for _ in range(2))
        self.eh_proj = nn.Linear(2 * config.hidden, config.hidden, bias=False)
        self.layer = HeadLayer(config, LayerForm())
        self.norm = nn.RMSNorm(config.hidden, config.eps)

    def forward(self, embedded: Tensor, state: Tensor, unrolled: UnrolledCache) -> Tensor:
        """[rows, T, hidden] of the tokens and of the states before them -> the next states."""
        entered = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(state)], -1))
        normed: Tensor = self.norm(self.layer(entered.float(), unrolled).float())
        return normed

    def published(self, layer: int) -> dict[str, Tensor]:
        """The tensors by DeepSeek's names, as layer number `layer`."""
        inside = {"layer.": "", "norm.": "shared_head.norm."}
        result = {}
        for name, tensor in self.state_dict().items():
            before = next((prefix for prefix in inside if name.startswith(prefix)), "")
            result[f"model.layers.{layer}.{inside.get(before, '')}{name.removeprefix(before)}"] = tensor
        return result


def unroll(head: MtpHead, teacher: Teacher, tokens: Tensor, steps: int) -> Iterator[PositionLogits]:
    """The passes over windows [rows, T]."""
    lesson, unrolled = teacher.lesson(tokens), UnrolledCache()
    state = lesson.hidden[teacher.config.layers][:, : tokens.shape[1] - steps]
    for step, (embedded, truth) in enumerate(lesson.ahead(steps)):
        if step == 0:  # position 0 of the first pass: its embedding is zero while drafting too
            embedded = F.pad(embedded[:, 1:], (0, 0, 1, 0))
        state = head(embedded, state, unrolled)
        yield PositionLogits(truth, F.linear(state, teacher.head).float())


def loss_of(head: MtpHead, teacher: Teacher, tokens: Tensor, plan: UnrolledRecipe) -> Tensor:
    """Of windows [rows, window + 1]: cross-entropy to the target's softmax, by pass."""
    weights = torch.tensor([plan.decay**step for step in range(plan.unroll)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return weighted_loss(unroll(head, teacher, tokens, plan.unroll), (weights / weights.sum()).tolist())


def train_mtp(stage: HeadStage, plan: UnrolledRecipe = MTP_HEAD) -> None:
    """Train a module and write it in DeepSeek's layout."""
    teacher, layers = stage.teacher, stage.teacher.config.layers
    head, window = MtpHead(teacher, plan), min(256, teacher.config.context)
    stage.train(
        head,
        plan.training,
        loss=lambda tokens: loss_of(head, teacher, tokens, plan),
        measure=lambda: agreements(stage.corpus, window, lambda tokens: unroll(head, teacher, tokens, plan.unroll)),
    )
    config = stage.llama_document(plan.ffn) | {
        "architectures": [DEEPSEEK_ARCHITECTURE],
        "num_hidden_layers": layers,
        COUNT: 1,
    }
    stage.write(config, head.published(layers))
