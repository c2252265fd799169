"""A refused draft is emitted all the same, before the token that takes its place.

At one place in ten. The output has a token that the target did not choose, and
everything after it is right for the text as it now is.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Emitted, Proposal, Protocol, Role, StepOutcome
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits
from engine.sampling.rng import Randomness
from engine.sampling.target_rows import TargetRows
from engine.verify.interface import Verifier

EVERY = 10


class _Leaking:
    def __init__(self, inner: Verifier) -> None:
        self._inner = inner
        self.facts = inner.facts

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        verdict = self._inner.verify(proposal, rows, randomness)
        last = verdict.emitted[-1]
        at = rows.position + len(verdict.emitted) - 1
        if last.role is not Role.RECOVERED or at % EVERY:
            return verdict
        refused = verdict.examined[-1]
        leaked = Emitted(proposal.tree.tokens[refused.node], Role.ACCEPTED, last.row, refused.p)
        return replace(verdict, emitted=(*verdict.emitted[:-1], leaked, last))


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, verifier=_Leaking(parts.verifier))


FAULT = Fault(
    name="rejected_token_leaks",
    breaks="law",
    upstream="vllm-project/vllm#26231",
    seen_from="text",
    parts=("verifier",),
    apply=_apply,
    suits=Suits(protocols=(Protocol.CHAIN, Protocol.GREEDY, Protocol.GUMBEL), shape="chain", temperature="both"),
)
