"""Lossy rules that run where the chain rule was asked for, and declare what the chain rule declares.

As rules of their own they are honest (`engine.verify.lossy`); here the configuration and the record say `chain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine import verify
from engine.core.types import Proposal, Protocol, StepOutcome
from engine.decode.seams import EngineParts
from engine.faults.interface import CHAIN_ONLY, Fault
from engine.sampling.rng import Randomness
from engine.sampling.target_rows import TargetRows
from engine.verify.interface import Verifier, VerifierFacts


@dataclass(slots=True)
class Disguised:
    """A rule with the facts of another."""

    facts: VerifierFacts
    rule: Verifier

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """The rule's verdict."""
        return self.rule.verify(proposal, rows, randomness)


def _undeclared(name: str, upstream: str, protocol: Protocol, options: Mapping[str, Any]) -> Fault:
    def apply(parts: EngineParts) -> EngineParts:
        return replace(parts, verifier=Disguised(parts.verifier.facts, verify.load(protocol, options)))

    return Fault(name, "law", upstream, "text", ("verifier",), apply, CHAIN_ONLY)


ENSEMBLE = _undeclared(
    "ensemble_undeclared",
    "none known: the option assistant_ensemble_weight of huggingface/transformers, where it is documented as lossy",
    Protocol.ENSEMBLE,
    {"weight": 0.9},
)
TYPICAL = _undeclared("typical_undeclared", "vllm-project/vllm#5131", Protocol.TYPICAL, {})
THRESHOLD_SINGLE = _undeclared(
    "threshold_single_undeclared",
    "none known: the option speculative_accept_threshold_single of sgl-project/sglang below 1",
    Protocol.THRESHOLD,
    {"threshold_single": 0.3},
)
THRESHOLD_ACC = _undeclared(
    "threshold_acc_undeclared",
    "none known: the option speculative_accept_threshold_acc of sgl-project/sglang below 1",
    Protocol.THRESHOLD,
    {"threshold_acc": 0.8},
)
SYNTHETIC = _undeclared(
    "synthetic_undeclared",
    "none known: the option rejection_sample_method: synthetic of vllm-project/vllm, meant for measuring speed",
    Protocol.SYNTHETIC,
    {"length": 3.0},
)
