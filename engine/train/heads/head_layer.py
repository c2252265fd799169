"""Shared parts of all draft heads' trainings: a llama layer, the frozen target, the loop, and the files.

The layer's parameters carry the published names. It can be unrolled on its own outputs: the keys and values of earlier
passes stay visible as they will be while drafting. The layer is the same for every head; published names, keys and
tables of a head belong to its trainer.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from engine.core.errors import ModelError
from engine.heads.decoder import LayerForm
from engine.models.files.folder import TOKENIZER_PATTERNS, ModelFolder
from engine.models.files.transformers_loader import load_whole
from engine.models.lean_weights import ARCHITECTURES, LeanConfig, read_config, rope_frequencies
from engine.models.loading import RESPONSE_TEMPLATE, open_source
from engine.models.numerics.fast import FastNumerics, rotated
from engine.models.numerics.interface import GrowingRope
from engine.train import trainer
from engine.train.corpus import Corpus
from engine.train.recipe import TrainRecipe
from engine.train.trainer import Report, TrainingJob, training_folder


@dataclass(slots=True)
class UnrolledCache:
    """Keys and values [rows, T, kv_heads, head_dim] of the passes so far, oldest first."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def mask(self, count: int) -> Tensor:
        """[T, passes * T]: row t sees the first pass up to t, and of each later pass itself alone."""
        own = torch.eye(count, dtype=torch.bool)
        return torch.cat([torch.ones_like(own).tril(), *[own] * (len(self.keys) - 1)], 1)


class HeadLayer(nn.Module):
    """One layer of the form that the head's decoder runs."""

    def __init__(self, config: LeanConfig, form: LayerForm) -> None:
        super().__init__()
        self._config, self._form = config, form
        hidden, wide, queries = config.hidden, config.hidden * len(form.norms), config.heads * config.head_dim
        keys = config.kv_heads * config.head_dim
        for name in (*form.norms, "post_attention_layernorm"):
            if name is not None:
                self.add_module(name, nn.RMSNorm(hidden, config.eps))
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(wide, queries, bias=False),
                "k_proj": nn.Linear(wide, keys, bias=False),
                "v_proj": nn.Linear(wide, keys, bias=False),
                "o_proj": nn.Linear(queries, hidden, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, config.ffn, bias=False),
                "up_proj": nn.Linear(hidden, config.ffn, bias=False),
                "down_proj": nn.Linear(config.ffn, hidden, bias=False),
            }
        )
        self._rope = GrowingRope(FastNumerics(), rope_frequencies(config), config.context, torch.float32)

    def forward(self, x: Tensor, unrolled: UnrolledCache) -> Tensor:
        """[rows, T, chunks * hidden] -> [rows, T, hidden]; pass k puts row t at position t + k."""
        chunks = torch.split(x, self._config.hidden, -1)
        normed = [self._norm(name, chunk) for name, chunk in zip(self._form.norms, chunks, strict=True)]
        kept = normed[-1] if self._form.residual == "normed" else chunks[-1]
        x = kept + self._attention(torch.cat(normed, -1), unrolled)
        return x + self.fed_forward(x)

    def fed_forward(self, x: Tensor) -> Tensor:
        """The part that the layer adds to [rows, T, hidden] after its attention."""
        rows = self._norm("post_attention_layernorm", x)
        inner: Tensor = F.silu(self.mlp["gate_proj"](rows)) * self.mlp["up_proj"](rows)
        down: Tensor = self.mlp["down_proj"](inner)
        return down

    def _norm(self, name: str | None, rows: Tensor) -> Tensor:
        normed: Tensor = rows if name is None else self.get_submodule(name)(rows.float())
        return normed

    def _attention(self, x: Tensor, unrolled: UnrolledCache) -> Tensor:
        config, passed, count = self._config, len(unrolled.keys), x.shape[1]
        split = {name: self.self_attn[f"{name}_proj"](x).float().unflatten(-1, (-1, config.head_dim)) for name in "qkv"}
        rope = self._rope.at(torch.arange(passed, passed + count))
        unrolled.keys.append(rotated(split["k"], rope))
        unrolled.values.append(split["v"])
        keys, values = (torch.cat(item, 1).transpose(1, 2) for item in (unrolled.keys, unrolled.values))
        queries = rotated(split["q"], rope).transpose(1, 2)
        seen = F.scaled_dot_product_attention(queries, keys, values, unrolled.mask(count), enable_gqa=True)
        out: Tensor = self.self_attn["o_proj"](seen.transpose(1, 2).flatten(-2))
        return out


@dataclass(frozen=True, slots=True)
class TeacherBatch:
    """The target's outputs for one batch of windows.

    embedded: [rows, T, hidden] its embeddings. hidden: by layer id, as HF counts. logits: [rows, T, V].
    """

    embedded: Tensor
    hidden: Mapping[int, Tensor]
    logits: Tensor

    def ahead(self, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For pass k of `steps` over rows t: the embedding of token t + 1 + k, and the logits after that token.

        [rows, T - steps, hidden] and [rows, T - steps, V]: all passes have the rows that the last one has.
        """
        count = self.logits.shape[1] - steps
        for step in range(1, 1 + steps):
            yield self.embedded[:, step : step + count], self.logits[:, step : step + count]


class Teacher:
    """A frozen target."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model.eval()
        self.document: dict[str, Any] = model.config.to_dict()
        self.config = read_config(self.document, "config.json")
        self.embedding: Tensor = model.get_input_embeddings().weight.detach().float()
        self.head: Tensor = model.get_output_embeddings().weight.detach().float()

    @torch.no_grad()
    def lesson(self, tokens: Tensor) -> TeacherBatch:
        """About windows [rows, T]."""
        out = self.model(tokens, output_hidden_states=True)
        hidden = {layer: states.float() for layer, states in enumerate(out.hidden_states)}
        return TeacherBatch(hidden[0], hidden, out.logits.float())

    def layer_sizes(self, ffn: int) -> LeanConfig:
        """The target's sizes for a layer of a head, which is a plain llama layer with a feed-forward of its own."""
        return replace(self.config, ffn=ffn, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False)


def open_target(source: Path) -> ModelFolder:
    """The files of a target in a folder or a GGUF file.

    Raises:
        ModelError: no model, or an architecture that the engine's own loader lacks.
    """
    opened = open_source(str(source)).folder
    kind, where = opened.config.get("model_type"), opened.name("config.json")
    if kind not in ARCHITECTURES:
        raise ModelError(f"{where}: cannot train for model_type {kind!r}; only {', '.join(ARCHITECTURES)}")
    read_config(opened.config, where)
    return opened


def teacher_of(target: ModelFolder) -> Teacher:
    """The frozen target in an opened folder, in float32. Raises ModelError for damaged weights."""
    return Teacher(load_whole(target, AutoModelForCausalLM, torch.float32, "causal model"))


def load_teacher(source: Path) -> Teacher:
    """The target in a folder or a GGUF file. Raises as `open_target` and `teacher_of`."""
    return teacher_of(open_target(source))


@dataclass(frozen=True, slots=True)
class HeadStage:
    """One head's training: the frozen target, the text, the folder to write, the progress callback, and the time.

    Without `minutes` by `clock` a training ends after its recipe's steps.
    """

    teacher: Teacher
    corpus: Corpus
    out: Path
    report: Report
    minutes: float | None = None
    clock: Callable[[], float] = time.monotonic

    def train(
        self,
        head: nn.Module,
        recipe: TrainRecipe,
        loss: Callable[[Tensor], Tensor],
        measure: Callable[[], Mapping[str, float]],
        batch: Callable[[int], Tensor] | None = None,
        best: str | None = None,
    ) -> None:
        """To the end, continuing from the checkpoint beside `out`; arguments as those of a `TrainingJob`."""
        windows = batch or (lambda step: trainer.batch(self.corpus, recipe, step))
        folder, report = training_folder(self.out), self.report
        trainer.run(TrainingJob(head, windows, loss, measure, recipe, folder, report, self.minutes, best, self.clock))

    def write_model(self, model: PreTrainedModel) -> None:
        """A whole model in bfloat16, with the target's own tokenizer files beside it."""
        model.eval().to(torch.bfloat16).save_pretrained(self.out, safe_serialization=True)
        target = Path(self.teacher.model.name_or_path)
        for pattern in (*TOKENIZER_PATTERNS, RESPONSE_TEMPLATE):
            for file in target.glob(pattern):
                copy = self.out / file.relative_to(target)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, copy)

    def write(self, config: Mapping[str, Any], trained: Mapping[str, Tensor], **tables: Tensor) -> None:
        """config.json and model.safetensors: trained tensors in bfloat16, tables as they are."""
        self.out.mkdir(parents=True, exist_ok=True)
        tensors = {name: item.detach().to(torch.bfloat16).contiguous() for name, item in trained.items()} | tables
        save_file(tensors, self.out / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps(config, indent=1, sort_keys=True) + "\n"
        (self.out / "config.json").write_text(text, encoding="utf-8")
        for name in ("model.safetensors", "config.json"):
            (self.out / name).chmod(0o644)

    def llama_document(self, ffn: int) -> dict[str, Any]:
        """A config.json of one llama layer with the target's sizes."""
        config = self.teacher.config
        return {
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": config.hidden,
            "intermediate_size": ffn,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "max_position_embeddings": config.context,
            "rms_norm_eps": config.eps,
            "rope_parameters": dict(config.rope),
            "vocab_size": config.vocabulary,
            "num_hidden_layers": 1,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        }
