"""Every extension point of the engine on one page: `name -> "module:attribute"`, imported on use.

Imports nothing of the engine but its errors, so that a name can be looked up without torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from engine.core.errors import InvalidRequest

PROPOSERS: Final[Mapping[str, str]] = {
    "cascade": "engine.proposers.draft_model.cascade:CascadeProposer",
    "ddtree": "engine.proposers.trained.ddtree:DDTreeProposer",
    "dflash": "engine.proposers.trained.dflash:DFlashProposer",
    "draft_model": "engine.proposers.draft_model.draft_model:DraftModelProposer",
    "eagle": "engine.proposers.trained.eagle:EagleProposer",
    "eagle2": "engine.proposers.trained.eagle2:Eagle2Proposer",
    "eagle3": "engine.proposers.trained.eagle3:Eagle3Proposer",
    "early_exit": "engine.proposers.self_draft.early_exit:EarlyExitProposer",
    "layer_skip": "engine.proposers.self_draft.layer_skip:LayerSkipProposer",
    "lookahead": "engine.proposers.copying.lookahead:LookaheadProposer",
    "mtp": "engine.proposers.trained.mtp:MtpProposer",
    "medusa": "engine.proposers.trained.medusa:MedusaProposer",
    "mlp_speculator": "engine.proposers.trained.mlp_speculator:MlpSpeculatorProposer",
    "ngram": "engine.proposers.copying.ngram:NgramProposer",
    "online": "engine.proposers.draft_model.online:OnlineProposer",
    "sequoia": "engine.proposers.draft_model.sequoia:SequoiaProposer",
    "specinfer": "engine.proposers.draft_model.specinfer:SpecInferProposer",
    "suffix": "engine.proposers.copying.suffix:SuffixProposer",
}
"""Proposer families: classes with `build(parts: ProposerParts) -> Proposer`."""

VERIFIERS: Final[Mapping[str, str]] = {
    "greedy": "engine.verify.greedy:GreedyVerifier",
    "chain": "engine.verify.chain:ChainVerifier",
    "tree": "engine.verify.tree:TreeVerifier",
    "block": "engine.verify.block:BlockVerifier",
    "gumbel": "engine.verify.gumbel:GumbelVerifier",
    "typical": "engine.verify.lossy:TypicalVerifier",
    "threshold": "engine.verify.lossy:ThresholdVerifier",
    "ensemble": "engine.verify.lossy:EnsembleVerifier",
    "synthetic": "engine.verify.lossy:SyntheticVerifier",
}
"""Verification rules, by `engine.core.types.Protocol`; their options are in `engine.verify.SETTINGS`."""

BACKENDS: Final[Mapping[str, str]] = {
    "native": "engine.backends.native:open_models",
    "scripted": "engine.backends.scripted:open_models",
    "transformers": "engine.backends.transformers:open_models",
    "vllm": "engine.backends.vllm:open_models",
    "openai": "engine.backends.openai:open_models",
}
"""Engines to audit: functions `open_models(models)`; their facts are in `engine.backends.REGISTRY`."""

NUMERICS: Final[Mapping[str, str]] = {
    "fast": "engine.models.numerics.fast:FastNumerics",
    "fixed": "engine.models.numerics.fixed:FixedNumerics",
    "tiled": "engine.models.numerics.tiled:TiledNumerics",
    "exact": "engine.models.numerics.exact:ExactNumerics",
}
"""Modes of arithmetic: classes without arguments."""

LOADERS: Final[Mapping[str, str]] = {"lean": "engine.models.lean:load_folder", "hf": "engine.models.hf:load_folder"}
"""Ways to load a model folder."""

HEAD_FORMATS: Final[Mapping[str, str]] = {
    "dflash": "engine.heads.formats.dflash:LAYOUT",
    "eagle": "engine.heads.formats.eagle:LAYOUT",
    "eagle3": "engine.heads.formats.eagle3:LAYOUT",
    "eagle3_speculators": "engine.heads.formats.eagle3:SPECULATORS",
    "medusa": "engine.heads.formats.medusa:LAYOUT",
    "mimo_mtp": "engine.heads.formats.mimo:LAYOUT",
    "mlp_speculator": "engine.heads.formats.mlp_speculator:LAYOUT",
    "qwen3_next_mtp": "engine.heads.formats.mtp:QWEN3_NEXT_LAYOUT",
    "deepseek_mtp": "engine.heads.formats.mtp:DEEPSEEK",
}
"""Published layouts of draft heads; the first that recognises a config.json reads it."""

HEAD_TRAINERS: Final[Mapping[str, str]] = {
    "dflash": "engine.train.dflash:train_dflash",
    "eagle": "engine.train.eagle:train_eagle",
    "eagle3": "engine.train.eagle3:train_eagle3",
    "medusa": "engine.train.medusa:train_medusa",
    "mlp_speculator": "engine.train.mlp_speculator:train_mlp_speculator",
    "mtp": "engine.train.mtp:train_mtp",
}
"""Training stages of the bundled draft heads: functions of a `HeadStage`."""


def resolve(registry: Mapping[str, str], name: str, kind: str) -> Any:
    """The object behind a registered name.

    Raises:
        InvalidRequest: the name is not registered; the message lists those that are.
    """
    if name not in registry:
        raise InvalidRequest(f"unknown {kind} {name!r}; known: {', '.join(sorted(registry))}")
    module, _, attribute = registry[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
