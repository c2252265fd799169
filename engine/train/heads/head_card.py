"""The card of a bundled draft head: digests, its target, its recipe. Its acceptance is measured together with all
proposers'.

The card of the target with early exits: digests, recipe, and its exits' acceptance compared with the untrained
target's.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native.backend import NativeBackend, open_models
from engine.core.types import Protocol, RecordLevel
from engine.heads.loading import load_head
from engine.models.loading import load_model
from engine.train import corpus, recipe
from engine.train.card import GAMMA, LENGTH, PROMPTS, by_domain, losses, write_card

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
    """Acceptance of the proposer at temperature 0, by exit and domain."""
    result = {}
    for layer in range(1, recipe.TARGET_MODEL.layers):
        options = {"exit_layer": layer}
        plan = EngineSpec(Protocol.GREEDY, "early_exit", GAMMA, options=options, level=RecordLevel.TOKENS)
        result[f"exit after layer {layer}"] = by_domain(shop.arm(plan), 0.0)
    return result
