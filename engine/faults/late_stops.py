"""What faults of endings are made of: ends that are found, and what came after them is kept.

Knows which ends, not why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.core.types import SamplingParams, StepOutcome
from engine.decode.seams import EngineParts
from engine.sampling.stopping import Decode, StopRule, TruncatedOutcome


@dataclass(frozen=True, slots=True)
class LateStops(StopRule):
    """Ends of one kind do not cut the step that they are in."""

    late: Literal["end tokens", "stop strings"] = "end tokens"

    def cut(self, generated: Sequence[int], verdict: StepOutcome) -> TruncatedOutcome:
        """The whole step, where an end of the kind is in it."""
        cut = StopRule.cut(self, generated, verdict)
        if cut.reason is None or len(generated) + len(cut.verdict.emitted) >= self.params.max_new_tokens:
            return cut
        end = cut.verdict.emitted[-1].token
        kind = "end tokens" if end in (*self.eos_ids, *self.params.stop_token_ids) else "stop strings"
        return replace(cut, verdict=verdict) if kind == self.late else cut


def late(parts: EngineParts, kind: Literal["end tokens", "stop strings"]) -> EngineParts:
    """Parts that keep what follows ends of a kind."""

    def stops(params: SamplingParams, eos_ids: tuple[int, ...], decode: Decode) -> StopRule:
        return LateStops(params, eos_ids, decode, kind)

    return replace(parts, stops=stops)
