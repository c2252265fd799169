"""Faults of rules: a lossy rule (`engine.verify.lossy`) runs, and configuration and record name the chain rule."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine import verify
from engine.core.types import Proposal, Protocol, StepOutcome
from engine.decode.seams import EngineParts
from engine.faults.interface import CHAIN_ONLY, Fault
from engine.sampling.rng import Randomness
from engine.sampling.transforms import TargetRows
from engine.verify.interface import Verifier, VerifierFacts


@dataclass(slots=True)
class _Disguised:
    facts: VerifierFacts
    rule: Verifier

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        return self.rule.verify(proposal, rows, randomness)


def _undeclared(upstream: str, protocol: Protocol, options: Mapping[str, Any]) -> Fault:
    def apply(parts: EngineParts) -> EngineParts:
        return replace(parts, verifier=_Disguised(parts.verifier.facts, verify.load(protocol, options)))

    return Fault(upstream, apply, CHAIN_ONLY, situation="rejected_first")


ENSEMBLE_UNDECLARED = _undeclared(
    "none known: the option assistant_ensemble_weight of huggingface/transformers, where it is documented as lossy",
    Protocol.ENSEMBLE,
    {"weight": 0.9},
)
"""Drafts are tested against a mixture of p and q in the place of p."""
TYPICAL_UNDECLARED = _undeclared("vllm-project/vllm#5131", Protocol.TYPICAL, {})
"""Typical acceptance: a drafted token is kept if its p exceeds a threshold that depends on the entropy of p."""
THRESHOLD_SINGLE_UNDECLARED = _undeclared(
    "none known: the option speculative_accept_threshold_single of sgl-project/sglang below 1",
    Protocol.THRESHOLD,
    {"threshold_single": 0.3},
)
"""A drafted token is kept if its p reaches a threshold."""
THRESHOLD_ACC_UNDECLARED = _undeclared(
    "none known: the option speculative_accept_threshold_acc of sgl-project/sglang below 1",
    Protocol.THRESHOLD,
    {"threshold_acc": 0.8},
)
"""The acceptance number is multiplied by a threshold below 1."""
SYNTHETIC_UNDECLARED = _undeclared(
    "none known: the option rejection_sample_method: synthetic of vllm-project/vllm, meant for measuring speed",
    Protocol.SYNTHETIC,
    {"length": 3.0},
)
"""Drafted tokens are kept at configured rates, whatever p and q are."""
