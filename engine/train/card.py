"""The cards of bundled models: digests, recipe, losses, samples, acceptance, each measured when it is written.

A draft head's card has its digests, its target and its recipe; its acceptance is measured together with all proposers'.
That of the target with early exits has its exits' acceptance compared with the untrained target's.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from transformers import LlamaForCausalLM

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Engine, Prompt
from engine.backends.native.backend import NativeBackend, open_models
from engine.core.types import Generation, Protocol, RecordLevel, Request, SamplingParams
from engine.heads.loading import load_head
from engine.models.loading import load_model
from engine.record.metrics import acceptance
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from engine.train import corpus, recipe, trainer
from engine.train.prompts import prompt_rows

GAMMA = 4
PROMPTS = 12
LENGTH = 64


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The origin of one model: its size, its last training, and its initial model."""

    folder: str
    model: recipe.ModelRecipe
    training: recipe.TrainRecipe
    began_as: Mapping[str, Any] = field(default_factory=dict)


PAIRS = (
    (
        TrainedModel("target", recipe.TARGET_MODEL, recipe.TARGET_TRAINING),
        TrainedModel("draft", recipe.DRAFT_MODEL, recipe.DRAFT_TRAINING),
    ),
    (
        TrainedModel("medium", recipe.MEDIUM_MODEL, recipe.MEDIUM_TRAINING, {"grown_from": "target"}),
        TrainedModel(
            "medium_draft",
            recipe.MEDIUM_DRAFT_MODEL,
            recipe.MEDIUM_DRAFT_TRAINING,
            {"pruned_from": "target", "layers": recipe.MEDIUM_DRAFT_LAYERS},
        ),
    ),
)


def write_cards(work: Path, target: TrainedModel, draft: TrainedModel) -> None:
    """Write `card.json` into each model's folder in the folder of the training."""
    trained = {"target": target, "draft": draft}
    backend = open_models({name: ModelSource(str(work / item.folder)) for name, item in trained.items()})
    manifest = json.loads((work / "corpus" / "corpus.json").read_text(encoding="utf-8"))
    data = corpus.load(work / "corpus")
    measured = {"gamma": GAMMA, "prompts_per_domain": PROMPTS, "max_new_tokens": LENGTH} | _acceptance(backend)
    for facts in backend.models():
        own = trained[facts.name]
        card = {
            "model_sha256": facts.sha256,
            "tokenizer_sha256": facts.tokenizer_sha256,
            "files": {name: file["sha256"] for name, file in facts.manifest["files"].items()},
            "model": asdict(own.model),
            "began_as": own.began_as,
            "training": asdict(own.training),
            "corpus": manifest,
            "held_out_loss": losses(work / own.folder, data),
            "acceptance": measured,
            "samples": _samples(backend) if facts.name == "target" else {},
        }
        write_card(work / own.folder, card)


def write_card(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `card.json` into the folder of a model, which has the model's name."""
    card = {"format": 1, "name": folder.name, **facts}
    (folder / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def losses(folder: Path, text: corpus.Corpus) -> Mapping[str, float]:
    """Held-out cross-entropy in nats per token by domain."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {domain: round(loss, 4) for domain, loss in trainer.held_out_loss(model, text).items()}


def _acceptance(backend: NativeBackend) -> dict[str, Any]:
    """Draft acceptance and tokens per target forward, by rule and domain."""
    rules = {
        "greedy": (Protocol.GREEDY, 0.0),
        "rejection, T=1": (Protocol.CHAIN, 1.0),
        "shared randomness, T=1": (Protocol.GUMBEL, 1.0),
    }
    return {name: _drafted(backend, protocol, temperature) for name, (protocol, temperature) in rules.items()}


def _drafted(backend: NativeBackend, protocol: Protocol, temperature: float) -> dict[str, Any]:
    plan = EngineSpec(protocol, proposer="draft_model", gamma=GAMMA, draft="draft", level=RecordLevel.TOKENS)
    return by_domain(backend.arm(plan), temperature)


def by_domain(engine: Engine, temperature: float) -> dict[str, Any]:
    """Acceptance and tokens per forward of an arm on the prompts of each domain."""
    result = {}
    for domain, rows in prompt_rows(PROMPTS).items():
        figures = acceptance(decode(item.trace) for item in _generate(engine, rows, temperature))
        result[domain] = {
            "draft_acceptance_rate": round(figures.draft_acceptance_rate, 4),
            "tokens_per_forward": round(figures.tokens_per_forward, 4),
            "drafted": figures.drafted,
            "accepted": figures.accepted,
        }
    return result


def _generate(engine: Engine, rows: list[dict[str, Any]], temperature: float) -> list[Generation]:
    sampling = SamplingParams(temperature=temperature, max_new_tokens=LENGTH, seed=1)
    requests = [Request(row["id"], engine.encode(_prompt(row)), sampling, stream_of(row["id"])) for row in rows]
    return list(engine.generate(requests))


def _prompt(row: Mapping[str, Any]) -> Prompt:
    return Prompt(tuple(row.get("messages", ())), tuple(row.get("tools", ())), row.get("prompt"))


def _samples(backend: NativeBackend) -> dict[str, list[dict[str, str]]]:
    """Greedy outputs of the first prompts of each domain."""
    engine = backend.arm(EngineSpec(Protocol.GREEDY, level=RecordLevel.TOKENS))
    samples = {}
    for domain, rows in prompt_rows(3).items():
        texts = {item.request.id: item.text for item in _generate(engine, rows, 0.0)}
        samples[domain] = [
            {"prompt": str(row.get("prompt") or row["messages"][0]["content"]), "output": texts[row["id"]]}
            for row in rows
        ]
    return samples


TRAININGS: Final[Mapping[str, Any]] = {
    "dflash": recipe.DFLASH_HEAD,
    "eagle": recipe.EAGLE_HEAD,
    "eagle3": recipe.EAGLE3_HEAD,
    "medusa": recipe.MEDUSA_HEADS,
    "mlp_speculator": recipe.MLP_SPECULATOR,
    "mtp": recipe.MTP_HEAD,
}


def write_head_card(folder: Path, target: Path, manifest: Mapping[str, Any]) -> None:
    """Write `card.json` into a head's folder, whose name is a key of `TRAININGS`.

    `target` is the model that it was trained for, `manifest` the corpus' own record of its token streams.
    """
    loaded = load_head(str(folder))
    if loaded is None:
        raise ValueError(f"{folder} holds no draft head")
    card = {
        "model_sha256": loaded.facts["model_sha256"],
        "files": {file.name: file.sha256 for file in loaded.files},
        "layout": loaded.head.layout,
        "family": loaded.head.family,
        "target_sha256": load_model(str(target)).model.facts["model_sha256"],
        "training": asdict(TRAININGS[folder.name]),
        "corpus": manifest,
    }
    write_card(folder, card)


def write_exit_card(work: Path, name: str) -> None:
    """Write `card.json` into the model's folder in `work`, measured against the target from which it began."""
    folders = {"trained": work / name, "untrained": work / "target"}
    shops = {key: open_models({"target": ModelSource(str(folder))}) for key, folder in folders.items()}
    facts = shops["trained"].models()[0]
    text = corpus.load(work / "corpus")
    card = {
        "model_sha256": facts.sha256,
        "tokenizer_sha256": facts.tokenizer_sha256,
        "files": {file: item["sha256"] for file, item in facts.manifest["files"].items()},
        "began_as": {"target": shops["untrained"].models()[0].sha256},
        "training": asdict(recipe.EARLY_EXIT),
        "corpus": json.loads((work / "corpus" / "corpus.json").read_text(encoding="utf-8")),
        "held_out_loss": {key: losses(folder, text) for key, folder in folders.items()},
        "acceptance": {"gamma": GAMMA, "prompts_per_domain": PROMPTS, "max_new_tokens": LENGTH}
        | {key: _by_exit(shop) for key, shop in shops.items()},
    }
    write_card(work / name, card)


def _by_exit(shop: NativeBackend) -> dict[str, Any]:
    result = {}
    for layer in range(1, recipe.TARGET_MODEL.layers):
        options = {"exit_layer": layer}
        plan = EngineSpec(Protocol.GREEDY, "early_exit", GAMMA, options=options, level=RecordLevel.TOKENS)
        result[f"exit after layer {layer}"] = by_domain(shop.arm(plan), 0.0)
    return result
