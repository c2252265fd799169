"""Decoder layers in plain torch on whole sequences."""

import math

import torch
import torch.nn.functional as F


def normed(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def turned(x, config):
    """[T, heads, head_dim] rotated by its row number, in the half-split layout."""
    half = config.head_dim // 2
    angles = torch.arange(len(x))[:, None] / 10000.0 ** (torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def straightforward(config, tensors, forms, x):
    """The same layers on one whole sequence [T, width]."""
    for i, form in enumerate(forms):

        def linear(name, rows, i=i):
            bias = tensors.get(f"layers.{i}.{name}.bias")
            return F.linear(rows, tensors[f"layers.{i}.{name}.weight"], bias)

        def norm(name, rows, i=i):
            return rows if name is None else normed(rows, tensors[f"layers.{i}.{name}.weight"], config.eps)

        chunks = x.split(config.hidden, 1)
        entered = [norm(name, chunk) for name, chunk in zip(form.norms, chunks, strict=True)]
        rows, count = torch.cat(entered, 1), len(x)
        q, k, v = (linear(f"self_attn.{n}_proj", rows).view(count, -1, config.head_dim) for n in "qkv")
        if config.qk_norm:
            q, k = norm("self_attn.q_norm", q), norm("self_attn.k_norm", k)
        q, k = turned(q, config), turned(k, config)
        k, v = (each.repeat_interleave(config.heads // config.kv_heads, 1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(config.head_dim)
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -math.inf)
        seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = (entered if form.residual == "normed" else chunks)[-1] + linear("self_attn.o_proj", seen)
        rows = norm("post_attention_layernorm", x)
        x = x + linear("mlp.down_proj", F.silu(linear("mlp.gate_proj", rows)) * linear("mlp.up_proj", rows))
    return x
