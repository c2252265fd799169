"""Proposers, one file per family.

A proposer is added by one file, one line in `REGISTRY` and one docs page; the
conformance test picks it up by itself. Each class has
`build(parts: ProposerParts) -> Proposer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.core.registry import resolve
from engine.proposers.build import ProposerParts
from engine.proposers.interface import Proposer

REGISTRY: Final[Mapping[str, str]] = {
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


def build(kind: str, parts: ProposerParts) -> Proposer:
    """A proposer of a registered kind.

    Raises:
        InvalidRequest: unknown kind, an option it does not have, or a missing draft model.
    """
    proposer: Proposer = resolve(REGISTRY, kind, "proposer").build(parts)
    return proposer
