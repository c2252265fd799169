"""Every drafted token is kept: the output is the draft's, and the acceptance rate is 1."""

from __future__ import annotations

from engine.faults.chain_walk import ChainWalk, Origin, chain_fault

FAULT = chain_fault(
    "accepts_everything",
    Origin("ggml-org/llama.cpp#3919, huggingface/transformers#28508"),
    lambda facts: ChainWalk(facts, accept=lambda _trial: True),
)
