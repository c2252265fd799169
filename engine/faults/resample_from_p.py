"""A rejected token is replaced by a draw from p instead of max(p - q, 0): tokens that q favours come out too often."""

from __future__ import annotations

from engine.faults.chain_walk import ChainWalk, Origin, chain_fault

FAULT = chain_fault(
    "resample_from_p",
    Origin("none known: the option skip_sample_adjustment of romsto/Speculative-Decoding does it, by reading"),
    lambda facts: ChainWalk(facts, left=lambda trial: trial.p),
)
