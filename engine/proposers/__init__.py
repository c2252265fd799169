"""Proposers, one file per family.

A proposer is added by one file, one line in `REGISTRY` and one docs page; the
conformance test picks it up by itself. Each class has
`build(parts: ProposerParts) -> Proposer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.proposers.base import Proposer
from engine.proposers.parts import ProposerParts
from engine.registry import resolve

REGISTRY: Final[Mapping[str, str]] = {
    "cascade": "engine.proposers.cascade:CascadeProposer",
    "ddtree": "engine.proposers.ddtree:DDTreeProposer",
    "dflash": "engine.proposers.dflash:DFlashProposer",
    "draft_model": "engine.proposers.draft_model:DraftModelProposer",
    "eagle": "engine.proposers.eagle:EagleProposer",
    "eagle2": "engine.proposers.eagle2:Eagle2Proposer",
    "eagle3": "engine.proposers.eagle3:Eagle3Proposer",
    "early_exit": "engine.proposers.early_exit:EarlyExitProposer",
    "layer_skip": "engine.proposers.layer_skip:LayerSkipProposer",
    "lookahead": "engine.proposers.lookahead:LookaheadProposer",
    "mtp": "engine.proposers.mtp:MtpProposer",
    "medusa": "engine.proposers.medusa:MedusaProposer",
    "mlp_speculator": "engine.proposers.mlp_speculator:MlpSpeculatorProposer",
    "ngram": "engine.proposers.ngram:NgramProposer",
    "online": "engine.proposers.online:OnlineProposer",
    "sequoia": "engine.proposers.sequoia:SequoiaProposer",
    "specinfer": "engine.proposers.specinfer:SpecInferProposer",
    "suffix": "engine.proposers.suffix:SuffixProposer",
}


def build(kind: str, parts: ProposerParts) -> Proposer:
    """A proposer of a registered kind.

    Raises:
        InvalidRequest: unknown kind, an option it does not have, or a missing draft model.
    """
    proposer: Proposer = resolve(REGISTRY, kind, "proposer").build(parts)
    return proposer
