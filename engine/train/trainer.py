"""One training loop for the reference family: plain or distilled, resumable.

The batch of step n depends on (seed, n) only, so a resumed run reads the same
data. Checkpoints are safetensors: no pickle anywhere.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from engine.train.corpus import Corpus, Tokens
from engine.train.recipe import ModelRecipe, TrainRecipe

SAVE_EVERY = 200
REPORT_EVERY = 50
Report = Callable[[str], None]


def new_model(recipe: ModelRecipe, vocabulary: int, seed: int) -> LlamaForCausalLM:
    """A randomly initialised llama; the token ids of the chat format are built in."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.ffn,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        eos_token_id=0,
        bos_token_id=1,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config)


@torch.no_grad()
def grow(source: LlamaForCausalLM, recipe: ModelRecipe) -> LlamaForCausalLM:
    """A deeper model that starts out as the same function as `source`.

    Layer k copies source layer floor(k L / L'). Of the copies of one layer all but the first have zero output
    projections, so they add nothing to the residual stream until they are trained (block expansion, arXiv:2401.02415).
    """
    model = new_model(recipe, source.config.vocab_size, seed=0)
    depth = len(source.model.layers)
    model.model.embed_tokens.load_state_dict(source.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(source.model.norm.state_dict())
    origins = [k * depth // recipe.layers for k in range(recipe.layers)]
    for k, (layer, origin) in enumerate(zip(model.model.layers, origins, strict=True)):
        layer.load_state_dict(source.model.layers[origin].state_dict())
        if k and origins[k - 1] == origin:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


@torch.no_grad()
def prune(source: LlamaForCausalLM, layers: Sequence[int], ffn: int) -> LlamaForCausalLM:
    """A smaller model out of some layers of `source`, in their order, to be distilled further.

    Of a layer's feed-forward units the `ffn` with the largest weights are kept: the product of the norms of a
    unit's row in `up_proj` and of its column in `down_proj`.
    """
    sizes = {"num_hidden_layers": len(layers), "intermediate_size": ffn}
    model = LlamaForCausalLM(LlamaConfig(**source.config.to_dict() | sizes))
    model.model.embed_tokens.load_state_dict(source.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(source.model.norm.state_dict())
    for layer, origin in zip(model.model.layers, layers, strict=True):
        tensors = source.model.layers[origin].state_dict()
        up, down = tensors["mlp.up_proj.weight"], tensors["mlp.down_proj.weight"]
        kept = (up.norm(dim=1) * down.norm(dim=0)).topk(ffn).indices.sort().values
        rows = {f"mlp.{name}.weight": tensors[f"mlp.{name}.weight"][kept] for name in ("gate_proj", "up_proj")}
        layer.load_state_dict(tensors | rows | {"mlp.down_proj.weight": down[:, kept]})
    return model


def batch(corpus: Corpus, recipe: TrainRecipe, step: int) -> Tensor:
    """Token windows of one step, [rows, window + 1]; about `code_share` of them code."""
    rng = np.random.default_rng((recipe.seed, step))
    rows = [
        _window(corpus.code if rng.random() < recipe.code_share else corpus.dialogue, recipe.window, rng)
        for _ in range(recipe.rows)
    ]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def _window(tokens: Tokens, window: int, rng: np.random.Generator) -> Tokens:
    start = int(rng.integers(0, len(tokens) - window - 1))
    return tokens[start : start + window + 1]


def learning_rate(recipe: TrainRecipe, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth."""
    warm = min(1.0, (step + 1) / recipe.warmup)
    return recipe.learning_rate * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * step / recipe.steps)))


def loss_of(model: LlamaForCausalLM, teacher: LlamaForCausalLM | None, tokens: Tensor, recipe: TrainRecipe) -> Tensor:
    """Cross-entropy, mixed with KL(target || draft) when there is a teacher."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1]).logits.float().flatten(0, 1)
        truth = F.cross_entropy(logits, tokens[:, 1:].flatten())
        if teacher is None:
            return truth
        with torch.no_grad():
            target = F.log_softmax(teacher(tokens[:, :-1]).logits.float().flatten(0, 1), -1)
    divergence = F.kl_div(F.log_softmax(logits, -1), target, log_target=True, reduction="batchmean")
    return recipe.distillation * divergence + (1 - recipe.distillation) * truth


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, corpus: Corpus, window: int = 512, windows: int = 6) -> dict[str, float]:
    """Mean cross-entropy in nats per token, by held-out domain."""
    model.eval()
    losses = {}
    for domain, tokens in corpus.held_out.items():
        count = min(windows, (len(tokens) - 1) // window)
        rows = np.stack([tokens[i * window : (i + 1) * window + 1] for i in range(count)]).astype(np.int64)
        x = torch.from_numpy(rows)
        losses[domain] = F.cross_entropy(model(x[:, :-1]).logits.float().flatten(0, 1), x[:, 1:].flatten()).item()
    model.train()
    return losses


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One training: the parameters, the data and the loss.

    `loss` maps a batch of token windows [rows, window + 1] to a number; `measure` reports its progress.
    """

    module: nn.Module
    loss: Callable[[Tensor], Tensor]
    measure: Callable[[], Mapping[str, float]]
    corpus: Corpus
    recipe: TrainRecipe
    folder: Path
    report: Report


def train(
    model: LlamaForCausalLM,
    corpus: Corpus,
    recipe: TrainRecipe,
    folder: Path,
    report: Report,
    teacher: LlamaForCausalLM | None = None,
) -> None:
    """Train a whole model to the recipe's last step, continuing from `folder` if a checkpoint is there."""
    job = TrainingJob(
        module=model,
        loss=lambda tokens: loss_of(model, teacher, tokens, recipe),
        measure=lambda: held_out_loss(model, corpus),
        corpus=corpus,
        recipe=recipe,
        folder=folder,
        report=report,
    )
    run(job)


def run(job: TrainingJob) -> None:
    """Train to the recipe's last step; parameters without gradients stay unchanged."""
    module, recipe = job.module, job.recipe
    optimiser = torch.optim.AdamW(
        (parameter for parameter in module.parameters() if parameter.requires_grad),
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    first = restore(module, optimiser, job.folder)
    module.train()
    began = time.monotonic()
    for step in range(first, recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, step)
        loss = job.loss(batch(job.corpus, recipe, step))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if (step + 1) % REPORT_EVERY == 0:
            speed = (step + 1 - first) * recipe.rows * recipe.window / (time.monotonic() - began)
            job.report(f"step {step + 1}/{recipe.steps} loss {loss.item():.3f} {speed:.0f} tokens/s")
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == recipe.steps:
            save(module, optimiser, job.folder, step + 1)
            job.report("measured " + json.dumps({k: round(v, 3) for k, v in job.measure().items()}))


def save(model: nn.Module, optimiser: torch.optim.Optimizer, folder: Path, step: int) -> None:
    """Write model, optimiser moments and step; the old checkpoint stays until the new one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    tensors = {f"model.{name}": value.detach().clone() for name, value in trained.items()}
    for name, parameter in trained.items():
        tensors |= {f"optimiser.{name}.{key}": value.clone() for key, value in optimiser.state[parameter].items()}
    partial = folder / "checkpoint.partial"
    save_file(tensors, partial, metadata={"step": str(step)})
    partial.replace(folder / "checkpoint.safetensors")


def restore(model: nn.Module, optimiser: torch.optim.Optimizer, folder: Path) -> int:
    """Load the checkpoint in `folder`; returns the next step, 0 without a checkpoint."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return 0
    tensors = load_file(path)
    with safe_open(path, framework="pt") as checkpoint:
        step = int(checkpoint.metadata()["step"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            parameter.copy_(tensors[f"model.{name}"])
            keys = ("step", "exp_avg", "exp_avg_sq")
            optimiser.state[parameter] = {key: tensors[f"optimiser.{name}.{key}"] for key in keys}
    return step
