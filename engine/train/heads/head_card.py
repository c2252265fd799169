"""The card of a bundled draft head: digests, its target, its recipe. Its acceptance is measured together with all
proposers'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from engine.heads.loading import load_head
from engine.models.loading import load_model
from engine.train import recipe

TRAININGS: Final[Mapping[str, Any]] = {
    "dflash": recipe.DFLASH_HEAD,
    "eagle": recipe.EAGLE_HEAD,
    "eagle3": recipe.EAGLE3_HEAD,
    "medusa": recipe.MEDUSA_HEADS,
    "mlp_speculator": recipe.MLP_SPECULATOR,
    "mtp": recipe.MTP_HEAD,
}


def write_head_card(folder: Path, target: Path, manifest: Mapping[str, Any]) -> None:
    """Write `card.json` into a head's folder.

    Args:
        folder: the head; its name is a key of `TRAININGS`.
        target: the model that it was trained for.
        manifest: the corpus' own record of its token streams.
    """
    loaded = load_head(str(folder))
    if loaded is None:
        raise ValueError(f"{folder} holds no draft head")
    card = {
        "format": 1,
        "name": folder.name,
        "model_sha256": loaded.facts["model_sha256"],
        "files": {file.name: file.sha256 for file in loaded.files},
        "layout": loaded.head.layout,
        "family": loaded.head.family,
        "target_sha256": load_model(str(target)).model.facts["model_sha256"],
        "training": asdict(TRAININGS[folder.name]),
        "corpus": manifest,
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
