"""One training loop for models, heads and drafts: to a number of steps or within a time, resumable.

The batch of step n depends on (seed, n) only, so a resumed run reads the same
data. Checkpoints are safetensors: no pickle anywhere.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.core.errors import ModelError
from engine.train.corpus import Corpus
from engine.train.passes import held_out_windows
from engine.train.recipe import ModelRecipe, TrainRecipe

SAVE_SECONDS = 60.0
"""Time between two checkpoints, or a tenth of the training's time if that is less."""
PAD = 2
"""The token id that pads a batch, as in every bundled model."""
CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
Report = Callable[[str], None]


def new_model(recipe: ModelRecipe, vocabulary: int, seed: int) -> LlamaForCausalLM:
    """A randomly initialised llama."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(llama_config(recipe, vocabulary))


def llama_config(recipe: ModelRecipe, vocabulary: int, **more: Any) -> LlamaConfig:
    """A llama's configuration; the token ids of the chat format are built in."""
    return LlamaConfig(
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
        pad_token_id=PAD,
        **more,
    )


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
def prune(source: PreTrainedModel, layers: Sequence[int], ffn: int | None = None) -> PreTrainedModel:
    """A smaller model out of some layers of `source`, a llama, qwen2 or qwen3, in their order, to be distilled further.

    Of a layer's feed-forward units the `ffn` with the largest weights are kept, or all of them: the product of the
    norms of a unit's row in `up_proj` and of its column in `down_proj`.
    """
    sizes: dict[str, Any] = {"num_hidden_layers": len(layers)} | ({"intermediate_size": ffn} if ffn else {})
    if getattr(source.config, "layer_types", None):
        sizes["layer_types"] = [source.config.layer_types[origin] for origin in layers]
    model = type(source)(type(source.config)(**source.config.to_dict() | sizes))
    shared = {name: tensor for name, tensor in source.state_dict().items() if ".layers." not in name}
    model.load_state_dict(shared, strict=False)
    for layer, origin in zip(model.model.layers, layers, strict=True):
        tensors = source.model.layers[origin].state_dict()
        if ffn is None:
            layer.load_state_dict(tensors)
            continue
        up, down = tensors["mlp.up_proj.weight"], tensors["mlp.down_proj.weight"]
        kept = (up.norm(dim=1) * down.norm(dim=0)).topk(ffn).indices.sort().values
        rows = {f"mlp.{name}.weight": tensors[f"mlp.{name}.weight"][kept] for name in ("gate_proj", "up_proj")}
        layer.load_state_dict(tensors | rows | {"mlp.down_proj.weight": down[:, kept]})
    return model


def batch(corpus: Corpus, recipe: TrainRecipe, step: int) -> Tensor:
    """Token windows of one step, [rows, window + 1]; about `code_share` of them code."""
    rng = np.random.default_rng((recipe.seed, step))
    rows = []
    for _ in range(recipe.rows):
        tokens = corpus.code if rng.random() < recipe.code_share else corpus.dialogue
        start = int(rng.integers(0, len(tokens) - recipe.window - 1))
        rows.append(tokens[start : start + recipe.window + 1])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def learning_rate(recipe: TrainRecipe, step: int, share: float) -> float:
    """Linear warm-up, then a cosine to a tenth at the end; `share` is that of the training so far."""
    warm = min(1.0, (step + 1) / recipe.warmup)
    return recipe.learning_rate * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


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
    for domain, x in held_out_windows(corpus, window + 1, windows).items():
        losses[domain] = F.cross_entropy(model(x[:, :-1]).logits.float().flatten(0, 1), x[:, 1:].flatten()).item()
    model.train()
    return losses


def training_folder(out: Path) -> Path:
    """The place of the checkpoints of a training that writes to `out`."""
    return out.with_name(f"{out.name}-training")


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The place in a training: finished steps, seconds so far, the best measurement."""

    step: int = 0
    seconds: float = 0.0
    best: float = -math.inf


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One training: the parameters, the data and the loss.

    `batch` makes the data of a step, of which `loss` makes a number; `measure` reports progress. The training ends
    after the recipe's steps, or with `minutes` after this time by `clock`. With `best`, the name of a measurement, it
    ends with the parameters for which this was largest, else with the last ones.
    """

    module: nn.Module
    batch: Callable[[int], Tensor]
    loss: Callable[[Tensor], Tensor]
    measure: Callable[[], Mapping[str, float]]
    recipe: TrainRecipe
    folder: Path
    report: Report
    minutes: float | None = None
    best: str | None = None
    clock: Callable[[], float] = time.monotonic

    def share(self, at: TrainingProgress) -> float:
        """The finished share of the training; at 1 or above it has ended."""
        return at.step / self.recipe.steps if self.minutes is None else at.seconds / (60 * self.minutes)

    def line(self, at: TrainingProgress, loss: float, measured: Mapping[str, float]) -> str:
        """Progress in words."""
        left = at.seconds * (1 / min(1.0, self.share(at)) - 1) / 60
        return f"step {at.step}, {left:.1f} min left, loss {loss:.3f}, held out: {in_words(measured)}"


def in_words(measured: Mapping[str, float]) -> str:
    """Measurements by name."""
    return ", ".join(f"{name} {value:.3f}" for name, value in measured.items())


def train(
    model: LlamaForCausalLM,
    corpus: Corpus,
    recipe: TrainRecipe,
    folder: Path,
    report: Report,
    teacher: LlamaForCausalLM | None = None,
) -> None:
    """Train a whole model to the recipe's last step, continuing from `folder` if a checkpoint is there."""
    run(
        TrainingJob(
            model,
            batch=lambda step: batch(corpus, recipe, step),
            loss=lambda tokens: loss_of(model, teacher, tokens, recipe),
            measure=lambda: held_out_loss(model, corpus),
            recipe=recipe,
            folder=folder,
            report=report,
        )
    )


def run(job: TrainingJob) -> None:
    """Train to the end; parameters without gradients stay unchanged.

    Raises:
        ModelError: the checkpoint in the folder is that of another training.
    """
    module, recipe = job.module, job.recipe
    optimiser = torch.optim.AdamW(
        (parameter for parameter in module.parameters() if parameter.requires_grad),
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    at = restore(module, optimiser, job.folder)
    module.train()
    began, saved = job.clock() - at.seconds, at.seconds
    pause = SAVE_SECONDS if job.minutes is None else min(SAVE_SECONDS, 6 * job.minutes)
    while job.share(at) < 1:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, at.step, job.share(at))
        loss = job.loss(job.batch(at.step))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        at = replace(at, step=at.step + 1, seconds=job.clock() - began)
        if at.seconds - saved >= pause or job.share(at) >= 1:
            measured, saved = job.measure(), at.seconds
            if job.best is not None and measured[job.best] > at.best:
                # a number of numpy has its type in its text
                at = replace(at, best=float(measured[job.best]))
                _write(_trained(module), job.folder / BEST)
            save(module, optimiser, job.folder, at)
            job.report(job.line(at, loss.item(), measured))
    if job.best is not None:
        module.load_state_dict(load_file(job.folder / BEST), strict=False)


def _trained(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def _write(tensors: Mapping[str, Tensor], path: Path, **facts: float) -> None:
    """The old file stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(copies, partial, metadata={name: repr(value) for name, value in facts.items()})
    partial.replace(path)


def save(model: nn.Module, optimiser: torch.optim.Optimizer, folder: Path, at: TrainingProgress) -> None:
    """Write model, optimiser moments and progress as one file."""
    tensors = {f"model.{name}": value for name, value in _trained(model).items()}
    for name, parameter in model.named_parameters():
        tensors |= {f"optimiser.{name}.{key}": value for key, value in optimiser.state.get(parameter, {}).items()}
    _write(tensors, folder / CHECKPOINT, step=at.step, seconds=at.seconds, best=at.best)


def restore(model: nn.Module, optimiser: torch.optim.Optimizer, folder: Path) -> TrainingProgress:
    """Load the checkpoint in `folder`, if there is one; returns the place where the training goes on.

    Raises:
        ModelError: it is damaged, or that of another training.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return TrainingProgress()
    trained = _trained(model)
    try:
        tensors = load_file(path)
        with safe_open(path, framework="pt") as checkpoint:
            facts = checkpoint.metadata()
        at = TrainingProgress(int(facts["step"]), float(facts["seconds"]), float(facts["best"]))
    except (SafetensorError, KeyError) as error:
        raise ModelError(f"{path}: not readable ({error}); remove its folder, and the training begins anew") from error
    shapes = {name.removeprefix("model."): item.shape for name, item in tensors.items() if name.startswith("model.")}
    if shapes != {name: value.shape for name, value in trained.items()}:
        raise ModelError(f"{path}: belongs to another training; remove its folder or choose another --out")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in trained:
                parameter.copy_(tensors[f"model.{name}"])
                keys = ("step", "exp_avg", "exp_avg_sq")
                optimiser.state[parameter] = {key: tensors[f"optimiser.{name}.{key}"] for key in keys}
    return at
