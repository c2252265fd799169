"""Training of one multi-token prediction module that drafts several tokens (FastMTP, arXiv 2509.18362).

The module is unrolled on its own outputs, as it will be while drafting; pass k
weighs decay^k, normalised over the passes. It learns the target's distribution.
Target, embedding and output matrix stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.checkpoints.mtp import COUNT, DEEPSEEK_ARCHITECTURE
from engine.heads.decoder import LayerForm
from engine.train import recipe, trainer
from engine.train.corpus import Corpus
from engine.train.eagle_stages import llama_document, write_head
from engine.train.head_layer import HeadLayer, Teacher, Unrolled, agreement
from engine.train.held_out import held_out_windows
from engine.train.recipe import MtpRecipe
from engine.train.trainer import Job, Report


class MtpHead(nn.Module):
    """The trained module."""

    def __init__(self, teacher: Teacher, plan: MtpRecipe) -> None:
        super().__init__()
        torch.manual_seed(plan.training.seed)
        config = replace(teacher.config, ffn=plan.ffn, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False)
        self.enorm, self.hnorm = (nn.RMSNorm(config.hidden, config.eps) for _ in range(2))
        self.eh_proj = nn.Linear(2 * config.hidden, config.hidden, bias=False)
        self.layer = HeadLayer(config, LayerForm())
        self.norm = nn.RMSNorm(config.hidden, config.eps)

    def forward(self, embedded: Tensor, state: Tensor, unrolled: Unrolled) -> Tensor:
        """[rows, T, hidden] of the tokens and of the states before them -> the next states."""
        entered = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(state)], -1))
        normed: Tensor = self.norm(self.layer(entered.float(), unrolled).float())
        return normed

    def published(self, layer: int) -> dict[str, Tensor]:
        """The tensors by DeepSeek's names, as layer number `layer`."""
        inside = {"layer.": "", "norm.": "shared_head.norm."}
        found = {}
        for name, tensor in self.state_dict().items():
            before = next((prefix for prefix in inside if name.startswith(prefix)), "")
            found[f"model.layers.{layer}.{inside.get(before, '')}{name.removeprefix(before)}"] = tensor
        return found


@dataclass(frozen=True, slots=True)
class Pass:
    """One unrolled pass: the target's logits and the module's, [rows, T, V] each."""

    target: Tensor
    draft: Tensor


def unroll(head: MtpHead, teacher: Teacher, tokens: Tensor, steps: int) -> Iterator[Pass]:
    """The passes over windows [rows, T]."""
    lesson, unrolled = teacher.lesson(tokens), Unrolled()
    count = tokens.shape[1] - steps
    state = lesson.hidden[teacher.config.layers][:, :count]
    for step in range(steps):
        after = slice(1 + step, 1 + step + count)
        embedded = lesson.embedded[:, after].clone()
        if step == 0:  # position 0 of the first pass: its embedding is zero while drafting too
            embedded[:, 0] = 0.0
        state = head(embedded, state, unrolled)
        yield Pass(lesson.logits[:, after], F.linear(state, teacher.head).float())


def loss_of(head: MtpHead, teacher: Teacher, tokens: Tensor, plan: MtpRecipe) -> Tensor:
    """Of windows [rows, window + 1]: cross-entropy to the target's softmax, by pass."""
    weights = torch.tensor([plan.decay**step for step in range(plan.unroll)])
    weights = weights / weights.sum()
    total = torch.zeros(())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for weight, each in zip(weights, unroll(head, teacher, tokens, plan.unroll), strict=True):
            said = -(each.target.softmax(-1) * F.log_softmax(each.draft, -1)).sum(-1)
            total = total + weight * said.mean()
    return total


@torch.no_grad()
def measured(head: MtpHead, teacher: Teacher, corpus: Corpus, plan: MtpRecipe) -> Mapping[str, float]:
    """How often a drawn token would be accepted on held-out text were all tokens drafted, by drafted position."""
    shares = [0.0] * plan.unroll
    windows = held_out_windows(corpus, window=min(256, teacher.config.context))
    for tokens in windows.values():
        for step, each in enumerate(unroll(head, teacher, tokens, plan.unroll)):
            shares[step] += agreement(each.target, each.draft) / len(windows)
    return {f"position {step + 1}": share for step, share in enumerate(shares)}


def train_mtp(teacher: Teacher, corpus: Corpus, out: Path, report: Report, plan: MtpRecipe = recipe.MTP_HEAD) -> None:
    """Train a module, continuing from the checkpoint beside `out`, and write it to `out`."""
    head = MtpHead(teacher, plan)
    job = Job(
        module=head,
        loss=lambda tokens: loss_of(head, teacher, tokens, plan),
        measure=lambda: measured(head, teacher, corpus, plan),
        corpus=corpus,
        recipe=plan.training,
        folder=out.with_name(f"{out.name}-training"),
        report=report,
    )
    trainer.run(job)
    layers = teacher.config.layers
    config = llama_document(teacher, plan.ffn) | {
        "architectures": [DEEPSEEK_ARCHITECTURE],
        "num_hidden_layers": layers,
        COUNT: 1,
    }
    write_head(out, config, head.published(layers), {})
