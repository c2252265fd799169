"""The stages that train the EAGLE heads and write them in their published layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.train import eagle, eagle3, recipe, trainer
from engine.train.corpus import Corpus
from engine.train.head_layer import Teacher
from engine.train.recipe import Eagle3Recipe, EagleRecipe
from engine.train.trainer import Job, Report

Stage = Callable[[Teacher, Corpus, Path, Report], None]


def train_eagle(
    teacher: Teacher, corpus: Corpus, out: Path, report: Report, plan: EagleRecipe = recipe.EAGLE_HEAD
) -> None:
    """Train an EAGLE-1 head, continuing from the checkpoint beside `out`, and write it to `out`."""
    head = eagle.EagleHead(teacher, plan)
    job = Job(
        module=head,
        loss=lambda tokens: eagle.loss_of(head, teacher, tokens, plan),
        measure=lambda: eagle.measured(head, teacher, corpus, plan),
        corpus=corpus,
        recipe=plan.training,
        folder=_checkpoints(out),
        report=report,
    )
    trainer.run(job)
    config = llama_document(teacher, plan.ffn) | {"architectures": ["EagleLlamaForCausalLM"], "bias": False}
    write_head(out, config, dict(head.state_dict()), {})


def train_eagle3(
    teacher: Teacher, corpus: Corpus, out: Path, report: Report, plan: Eagle3Recipe = recipe.EAGLE3_HEAD
) -> None:
    """Train an EAGLE-3 head, continuing from the checkpoint beside `out`, and write it to `out`."""
    plan = replace(plan, aux_layers=fitting_layers(plan.aux_layers, teacher.config.layers))
    kept = eagle3.draft_vocabulary(corpus, plan.draft_vocabulary, teacher.config.vocabulary)
    head = eagle3.Eagle3Head(teacher, kept, plan)
    job = Job(
        module=head,
        loss=lambda tokens: eagle3.loss_of(head, teacher, tokens, plan),
        measure=lambda: eagle3.measured(head, teacher, corpus, plan),
        corpus=corpus,
        recipe=plan.training,
        folder=_checkpoints(out),
        report=report,
    )
    trainer.run(job)
    t2d = torch.zeros(teacher.config.vocabulary, dtype=torch.bool)
    t2d[kept] = True
    config = llama_document(teacher, plan.ffn) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(kept),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(plan.aux_layers),
            "use_aux_hidden_state": True,
        },
    }
    write_head(out, config, dict(head.state_dict()), {"d2t": head.d2t, "t2d": t2d})


STAGES: Mapping[str, Stage] = {"eagle": train_eagle, "eagle3": train_eagle3}


def fitting_layers(wanted: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """The recipe's layers if the target is as shallow as the bundled one, else the published choice."""
    return wanted if layers <= max(wanted) + 1 else (2, layers // 2, layers - 3)


def llama_document(teacher: Teacher, ffn: int) -> dict[str, Any]:
    """A config.json of one llama layer with the target's sizes."""
    config = teacher.config
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


def write_head(
    folder: Path, config: Mapping[str, Any], trained: Mapping[str, Tensor], tables: Mapping[str, Tensor]
) -> None:
    """config.json and model.safetensors: trained tensors in bfloat16, tables as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: each.detach().to(torch.bfloat16).contiguous() for name, each in trained.items()} | dict(tables)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name in ("model.safetensors", "config.json"):
        (folder / name).chmod(0o644)


def _checkpoints(out: Path) -> Path:
    return out.with_name(f"{out.name}-training")
