"""A multi-token-prediction module in plain torch."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from engine.models.decoder.lean import LeanModel
from tests.engine.heads.tiny import tiny_target
from tests.support.plain_decoder import normed


def turned(x, positions, config):
    half = config.head_dim // 2
    angles = positions[:, None] / 10000.0 ** (torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos()[:, None].to(x), angles.sin()[:, None].to(x)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Module:
    """One module on whole sequences of (position, state, token) in plain torch."""

    def __init__(self, k, head, config):
        tensors = head.tensors
        self.tensors = {name.removeprefix(f"modules.{k}."): each for name, each in tensors.items()}
        self.config, self.target = config, tiny_target(config.vocabulary)

    def norm(self, name, x):
        return normed(x, self.tensors[name], self.config.eps)

    def linear(self, name, x):
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def states(self, rows):
        positions = torch.tensor([position for position, _, _ in rows])
        embedded = self.target.weights.embedding[[token for _, _, token in rows]] * (positions > 0)[:, None]
        state = torch.stack([state for _, state, _ in rows])
        both = torch.cat([self.norm("embedding_norm", embedded), self.norm("hidden_norm", state)], 1)
        return self.norm("norm", self.layer(F.linear(both, self.tensors["project"]), positions))

    def layer(self, x, positions):
        config, at = self.config, "layers.0."
        rows = self.norm(f"{at}input_layernorm.weight", x)
        q, k, v = (self.linear(f"{at}self_attn.{n}_proj", rows).view(len(x), -1, config.head_dim) for n in "qkv")
        q, k = turned(q, positions, config), turned(k, positions, config)
        k, v = (each.repeat_interleave(config.heads // config.kv_heads, 1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(config.head_dim)
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
        seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = x + self.linear(f"{at}self_attn.o_proj", seen)
        rows = self.norm(f"{at}post_attention_layernorm.weight", x)
        gate, up = (self.linear(f"{at}mlp.{name}_proj", rows) for name in ("gate", "up"))
        return x + self.linear(f"{at}mlp.down_proj", F.silu(gate) * up)


def unweighted(target):
    """The target with final norm weights of 1: its last states equal those before the norm up to a factor."""
    return LeanModel(target.config, replace(target.weights, norm=torch.ones_like(target.weights.norm)))
