"""The greedy rule keeps a drafted token that is the target's second choice as well as its first."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine.core.trees import children
from engine.core.types import Proposal, Protocol, SamplingParams, StepOutcome
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.sampling.rng import Randomness
from engine.sampling.target_rows import TargetRows
from engine.verify.interface import VerifierFacts
from engine.verify.matching import match


@dataclass(slots=True)
class _TopTwo:
    facts: VerifierFacts

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:  # noqa: ARG002 - protocol
        """Take the drafted child among the two best tokens, if there is one."""

        def choose(row: int, _position: int) -> int:
            best = [int(token) for token in np.argsort(-rows[row].scores, kind="stable")[:2]]
            offered = [proposal.tree.tokens[child] for child in children(proposal.tree, row - 1)]
            return next((token for token in best if token in offered), best[0])

        return match(proposal, rows, choose)


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, verifier=_TopTwo(parts.verifier.facts))


FAULT = Fault(
    name="greedy_accepts_top2",
    breaks="equality",
    upstream="none known: stands for options that keep a draft among the target's best k",
    seen_from="text",
    parts=("verifier",),
    apply=_apply,
    suits=Suits((Protocol.GREEDY,), temperature="greedy"),
    scenario=Scenario(Protocol.GREEDY, sampling=SamplingParams()),
)
