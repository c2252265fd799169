"""Shared parts of all draft heads' trainings: the inputs, the loop, and the written folder. Published names, keys and
tables belong to each head's trainer.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.models.files.folder import TOKENIZER_PATTERNS
from engine.models.loading import RESPONSE_TEMPLATE
from engine.train import trainer
from engine.train.corpus import Corpus
from engine.train.heads.head_layer import Teacher
from engine.train.recipe import TrainRecipe
from engine.train.trainer import Report, TrainingJob, training_folder


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
