"""The card of each bundled model: digests, recipe, losses, samples, acceptance.

Everything in a card is measured when it is written.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Engine, Prompt
from engine.backends.native.backend import NativeBackend, open_models
from engine.core.types import Generation, Protocol, RecordLevel, Request, SamplingParams
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
