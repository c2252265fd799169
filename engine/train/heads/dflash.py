"""Training of a DFlash block drafter (arXiv 2602.06036) for a frozen target.

In every window blocks begin at evenly spaced anchors. A block sees the context before its anchor and itself; its masks
learn the target's distributions, earlier ones with more weight, because a draft ends at the first refusal. Target,
embedding and output matrix stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.heads.decoder import LayerForm
from engine.heads.formats.dflash import SECTION
from engine.models.lean_weights import rope_frequencies
from engine.models.numerics.fast import FastNumerics, rotated
from engine.models.numerics.interface import GrowingRope, RopeTables
from engine.train.heads.head_layer import HeadLayer, HeadStage, Teacher
from engine.train.passes import PositionLogits, agreements
from engine.train.recipe import DFLASH_HEAD, DFlashRecipe


@dataclass(frozen=True, slots=True)
class BlockPlacement:
    """The places of the blocks in a window of T tokens: `anchors` [A], and `size` rows each."""

    anchors: Tensor
    size: int

    @classmethod
    def spaced(cls, window: int, size: int, count: int) -> BlockPlacement:
        """Evenly, from position 1 on; every block's last token is inside the window."""
        return cls(torch.linspace(1, window - size, count).long(), size)

    @property
    def positions(self) -> Tensor:
        """[A, size]."""
        return self.anchors[:, None] + torch.arange(self.size)

    def mask(self, window: int) -> Tensor:
        """[A * size, window + A * size]: a block sees itself and the positions before its anchor."""
        own = torch.arange(len(self.anchors)).repeat_interleave(self.size)
        before = torch.arange(window) < self.anchors[own][:, None]
        return torch.cat([before, own[:, None] == own], 1)


class DFlashHead(nn.Module):
    """The trained tensors by their published names."""

    def __init__(self, teacher: Teacher, plan: DFlashRecipe) -> None:
        super().__init__()
        torch.manual_seed(plan.training.seed)
        config = teacher.layer_sizes(plan.ffn)
        self._config = config
        self.fc = nn.Linear(len(plan.target_layers) * config.hidden, config.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden, config.eps)
        self.layers = nn.ModuleList(HeadLayer(config, LayerForm()) for _ in range(plan.layers))
        self.norm = nn.RMSNorm(config.hidden, config.eps)
        self._rope = GrowingRope(FastNumerics(), rope_frequencies(config), config.context, torch.float32)

    def forward(self, states: Tensor, embedded: Tensor, blocks: BlockPlacement) -> Tensor:
        """[rows, T, features * hidden] and [rows, A * size, hidden] -> [rows, A * size, hidden]."""
        count, x = states.shape[1], embedded
        features = self.hidden_norm(self.fc(states).float())
        positions = torch.cat([torch.arange(count), blocks.positions.flatten()])
        rope = self._rope.at(positions)
        mask = blocks.mask(count)
        for layer in self.layers:
            entered = torch.cat([features, layer.get_submodule("input_layernorm")(x.float())], 1)
            x = x + self._attention(layer, entered, rope, mask)
            assert isinstance(layer, HeadLayer)
            x = x + layer.fed_forward(x)
        last: Tensor = self.norm(x.float())
        return last

    def _attention(self, layer: nn.Module, rows: Tensor, rope: RopeTables, mask: Tensor) -> Tensor:
        """Of the block's rows, which are the last ones, over all [rows, T + A * size, hidden]."""
        count, attention = mask.shape[0], layer.get_submodule("self_attn")
        q, k, v = (
            attention.get_submodule(f"{name}_proj")(part).float().unflatten(-1, (-1, self._config.head_dim))
            for name, part in (("q", rows[:, -count:]), ("k", rows), ("v", rows))
        )
        q = rotated(q, RopeTables(rope.cos[-count:], rope.sin[-count:])).transpose(1, 2)
        k, v = rotated(k, rope).transpose(1, 2), v.transpose(1, 2)
        seen = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        out: Tensor = attention.get_submodule("o_proj")(seen.transpose(1, 2).flatten(-2))
        return out


def compare(head: DFlashHead, teacher: Teacher, tokens: Tensor, plan: DFlashRecipe) -> PositionLogits:
    """Over windows [rows, T], logits [rows, A, size - 1, V]; of a block the drafter knows the anchor only."""
    lesson, blocks = teacher.lesson(tokens), BlockPlacement.spaced(tokens.shape[1], plan.block, plan.anchors)
    states = torch.cat([lesson.hidden[layer + 1] for layer in plan.target_layers], -1)
    block = torch.full((len(tokens), len(blocks.anchors), plan.block), mask_token(teacher))
    block[:, :, 0] = tokens[:, blocks.anchors]
    out = head(states, F.embedding(block.flatten(1), teacher.embedding), blocks)
    masks = out.unflatten(1, (-1, plan.block))[:, :, 1:]
    return PositionLogits(lesson.logits[:, blocks.positions[:, :-1]], F.linear(masks, teacher.head).float())


def mask_token(teacher: Teacher) -> int:
    """A token that no text has: the padding token or, without one, the last id."""
    result = teacher.document.get("pad_token_id")
    return teacher.config.vocabulary - 1 if result is None else int(result)


def loss_of(head: DFlashHead, teacher: Teacher, tokens: Tensor, plan: DFlashRecipe) -> Tensor:
    """Of windows [rows, window + 1]: cross-entropy to the target's softmax, less for later masks."""
    weights = torch.exp(-torch.arange(plan.block - 1) / plan.reach)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        entropy = compare(head, teacher, tokens, plan).entropy()
    return (entropy.mean((0, 1)) * weights / weights.sum()).sum()


def by_mask(head: DFlashHead, teacher: Teacher, tokens: Tensor, plan: DFlashRecipe) -> Iterator[PositionLogits]:
    """Of windows [rows, T], one pass per mask."""
    said = compare(head, teacher, tokens, plan)
    for i in range(plan.block - 1):
        yield PositionLogits(said.target[:, :, i], said.draft[:, :, i])


def train_dflash(stage: HeadStage, plan: DFlashRecipe = DFLASH_HEAD) -> None:
    """Train a drafter and write it in the published layout."""
    teacher = stage.teacher
    plan = replace(plan, target_layers=fitting_layers(plan.target_layers, teacher.config.layers))
    head, window = DFlashHead(teacher, plan), min(256, teacher.config.context)
    stage.train(
        head,
        plan.training,
        loss=lambda tokens: loss_of(head, teacher, tokens, plan),
        measure=lambda: agreements(stage.corpus, window, lambda tokens: by_mask(head, teacher, tokens, plan)),
    )
    config = stage.llama_document(plan.ffn) | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": plan.layers,
        "num_target_layers": teacher.config.layers,
        "block_size": plan.block,
        SECTION: {"mask_token_id": mask_token(teacher), "target_layer_ids": list(plan.target_layers)},
    }
    stage.write(config, head.state_dict())


def fitting_layers(wanted: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """The recipe's layers if the target is about as shallow as the bundled one, else five, evenly spaced."""
    if layers <= 2 * (max(wanted) + 1):
        return tuple(i for i in wanted if i < layers)
    return tuple(round(1 + i * (layers - 4) / 4) for i in range(5))
