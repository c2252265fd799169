"""Faults of endings: a response goes on past its end, or reports the wrong reason for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from engine.core.types import FinishReason, Protocol, SamplingParams, StepOutcome
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.sampling.stopping import Decode, StopRule, TruncatedOutcome

Kind = Literal["end tokens", "stop strings"]

ENDING: Final = Suits(temperature="both", needs=("end tokens",))
END_TOKENS: Final = Scenario(sampling=SamplingParams(temperature=1.0, stop_token_ids=(2, 9, 17, 28)))


@dataclass(frozen=True, slots=True)
class LateStops(StopRule):
    """Ends of one kind do not cut the step in which they occur."""

    late: Kind = "end tokens"

    def cut(self, generated: Sequence[int], verdict: StepOutcome) -> TruncatedOutcome:
        """The whole step, if an end of the kind is in it."""
        cut = StopRule.cut(self, generated, verdict)
        if cut.reason is None or len(generated) + len(cut.verdict.emitted) >= self.params.max_new_tokens:
            return cut
        end = cut.verdict.emitted[-1].token
        kind = "end tokens" if end in (*self.eos_ids, *self.params.stop_token_ids) else "stop strings"
        return replace(cut, verdict=verdict) if kind == self.late else cut


def with_late_stops(parts: EngineParts, kind: Kind) -> EngineParts:
    """Parts that keep the tokens after ends of a kind."""

    def stops(params: SamplingParams, eos_ids: tuple[int, ...], decode: Decode) -> StopRule:
        return LateStops(params, eos_ids, decode, kind)

    return replace(parts, stops=stops)


TOKENS_AFTER_END_TOKEN = Fault(
    name="tokens_after_end_token",
    breaks="structure",
    upstream="vllm-project/vllm#56101, #56137, sgl-project/sglang#39826",
    seen_from="text",
    parts=("stops",),
    apply=lambda parts: with_late_stops(parts, "end tokens"),
    suits=ENDING,
    scenario=END_TOKENS,
    situation="end_in_draft",
)
"""The tokens that a step decided after an end token are emitted and counted.

The end is found only when the step is over. The excess is the rest of the step, so plain decoding never shows it.
"""

TOKENS_AFTER_STOP_STRING = Fault(
    name="tokens_after_stop_string",
    breaks="structure",
    upstream="vllm-project/vllm#47616, snowflakedb/ArcticInference#161",
    seen_from="text",
    parts=("stops",),
    apply=lambda parts: with_late_stops(parts, "stop strings"),
    suits=Suits(temperature="both", needs=("stop strings",)),
    scenario=Scenario(protocol=Protocol.GUMBEL, sampling=SamplingParams(temperature=1.0, stop=("e", "k", "q", "w"))),
    situation="stop_string_in_draft",
)
"""The tokens that a step decided after a stop string stay in the response.

The text may be cut correctly while the token ids and log-probabilities next to it are not.
"""


def _one_token_more(parts: EngineParts) -> EngineParts:
    def stops(params: SamplingParams, eos_ids: tuple[int, ...], decode: Decode) -> StopRule:
        return parts.stops(replace(params, max_new_tokens=params.max_new_tokens + 1), eos_ids, decode)

    return replace(parts, stops=stops)


LENGTH_OVERRUN = Fault(
    name="length_overrun",
    breaks="structure",
    upstream="ohdearquant/lattice#242",
    seen_from="text",
    parts=("stops",),
    apply=_one_token_more,
    suits=Suits(temperature="both"),
    situation="length_in_draft",
)
"""A response is one token longer than its limit.

The limit is checked before a step, not within it. Upstream a whole draft exceeded the limit; here the loop drafts no
deeper than the limit, so one more step is one more token.
"""


@dataclass(frozen=True, slots=True)
class _LengthOnly(StopRule):
    def cut(self, generated: Sequence[int], verdict: StepOutcome) -> TruncatedOutcome:
        cut = StopRule.cut(self, generated, verdict)
        return cut if cut.reason is None else replace(cut, reason=FinishReason.LENGTH)


FINISH_REASON_WRONG = Fault(
    name="finish_reason_wrong",
    breaks="structure",
    upstream="sgl-project/sglang#31599",
    seen_from="engine evidence",
    parts=("stops",),
    apply=lambda parts: replace(parts, stops=_LengthOnly),
    suits=ENDING,
    scenario=END_TOKENS,
    situation="end_in_draft",
)
"""Responses that reached an end of their own report that they ran out of tokens.

The length is checked first. A count of truncated responses is too high.
"""
