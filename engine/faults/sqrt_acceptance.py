"""The test compares with the square root of p / q: a tuned rule that accepts more than p allows."""

from __future__ import annotations

from engine.faults.chain_walk import ChainWalk, Origin, chain_fault

FAULT = chain_fault(
    "sqrt_acceptance",
    Origin("none known: stands for every acceptance function that is not min(1, p / q)"),
    lambda facts: ChainWalk(facts, accept=lambda trial: trial.u * trial.u * trial.q_token < trial.p_token),
)
