"""Faults of endings: a response goes on past its end, or reports the wrong reason for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from engine.core.types import FinishReason, Protocol, Role, SamplingParams, StepOutcome
from engine.decode.seams import EngineParts, StopsOf
from engine.faults.interface import ANY_ARM, Fault, Scenario, Situation, Suits
from engine.sampling.stopping import Decode, StopRule, TruncatedOutcome, trim

Kind = Literal["end tokens", "stop strings"]

ENDING: Final = Suits(temperature="both", needs=("end tokens",))
STOPPING: Final = Suits(temperature="both", needs=("stop strings",))
STOP_LETTERS: Final = Scenario(
    protocol=Protocol.GUMBEL, sampling=SamplingParams(temperature=1.0, stop=("e", "k", "q", "w"))
)
HELD_BACK: Final = 8
"""`TEXT_OUT_OF_ORDER` exchanges every eighth token with the one before it."""
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


def _stops_fault(
    upstream: str, stops: StopsOf, situation: Situation, suits: Suits = ENDING, scenario: Scenario = END_TOKENS
) -> Fault:
    """A fault of the rule by which a response ends."""
    return Fault(
        upstream, lambda parts: replace(parts, stops=stops), suits, scenario, breaks="structure", situation=situation
    )


TOKENS_AFTER_END_TOKEN = _stops_fault(
    "vllm-project/vllm#56101, #56137, sgl-project/sglang#39826", partial(LateStops, late="end tokens"), "end_in_draft"
)
"""The tokens that a step decided after an end token are emitted and counted.

The end is found only when the step is over. The excess is the rest of the step, so plain decoding never shows it.
"""

TOKENS_AFTER_STOP_STRING = _stops_fault(
    "vllm-project/vllm#47616, snowflakedb/ArcticInference#161",
    partial(LateStops, late="stop strings"),
    "stop_string_in_draft",
    STOPPING,
    STOP_LETTERS,
)
"""The tokens that a step decided after a stop string stay in the response.

The text may be cut correctly while the token ids and log-probabilities next to it are not.
"""


def _one_token_more(parts: EngineParts) -> EngineParts:
    def stops(params: SamplingParams, eos_ids: tuple[int, ...], decode: Decode) -> StopRule:
        return parts.stops(replace(params, max_new_tokens=params.max_new_tokens + 1), eos_ids, decode)

    return replace(parts, stops=stops)


LENGTH_OVERRUN = Fault(
    "ohdearquant/lattice#242", _one_token_more, ANY_ARM, breaks="structure", situation="length_in_draft"
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
    "sgl-project/sglang#31599",
    lambda parts: replace(parts, stops=_LengthOnly),
    ENDING,
    END_TOKENS,
    breaks="structure",
    seen_from="engine evidence",
    situation="end_in_draft",
)
"""Responses that reached an end of their own report that they ran out of tokens.

The length is checked first. A count of truncated responses is too high.
"""

# ends that only some places of a draft miss


@dataclass(frozen=True, slots=True)
class End:
    """An end that a token of a step completes.

    role: the role of that token.
    place: its place among the step's tokens, from 1.
    left: the number of tokens of the step after it.
    """

    kind: Kind
    role: Role
    place: int
    left: int
    stop: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _MissedEnds(StopRule):
    """Some ends do not end the response, unless it is as long as its limit."""

    misses: Callable[[End], bool] = lambda _end: False

    def cut(self, generated: Sequence[int], verdict: StepOutcome) -> TruncatedOutcome:
        """The step up to the first end that is not missed."""
        tokens = list(generated)
        for place, emitted in enumerate(verdict.emitted, start=1):
            tokens.append(emitted.token)
            reason = self._reason(tokens)
            kind: Kind = (
                "end tokens" if emitted.token in (*self.eos_ids, *self.params.stop_token_ids) else "stop strings"
            )
            end = End(kind, emitted.role, place, len(verdict.emitted) - place, self.params.stop)
            if reason is not None and (len(tokens) >= self.params.max_new_tokens or not self.misses(end)):
                return TruncatedOutcome(trim(verdict, place), reason)
        return TruncatedOutcome(verdict, None)


DRAFTED_END_IGNORED = _stops_fault(
    "microsoft/onnxruntime-genai#2491",
    partial(_MissedEnds, misses=lambda end: end.kind == "end tokens" and end.role is Role.ACCEPTED),
    "end_in_draft",
)
"""An end token that was drafted does not end the response; one that the target draws does.

Accepted drafts take the path of prompt tokens, which resets the end.
"""

BONUS_END_IGNORED = _stops_fault(
    "none known: engines that look for ends among the drafted tokens and those that replace them",
    partial(_MissedEnds, misses=lambda end: end.kind == "end tokens" and end.role is Role.BONUS),
    "end_at_bonus",
    scenario=replace(END_TOKENS, gamma=1),
)
"""An end token that is the bonus token of a draft that was kept whole does not end the response."""

STOP_STRING_OUT_OF_WINDOW = _stops_fault(
    "sgl-project/sglang#23802, #27637",
    partial(_MissedEnds, misses=lambda end: end.kind == "stop strings" and end.left > max(map(len, end.stop))),
    "stop_string_in_draft",
    STOPPING,
    STOP_LETTERS,
)
"""Stop strings are searched in as many tokens as the longest of them has, at the end of the step.

A stop string that is followed by more accepted tokens lies outside this window, and the response goes on for ever.
"""

STOP_STRING_ACROSS_STEPS_MISSED = _stops_fault(
    "none known: engines that search the text of each step by itself; PaddlePaddle/FastDeploy#7166 is near",
    partial(_MissedEnds, misses=lambda end: end.kind == "stop strings" and end.place < min(map(len, end.stop))),
    "stop_string_across_steps",
    STOPPING,
    Scenario(
        protocol=Protocol.GUMBEL,
        sampling=SamplingParams(temperature=1.0, stop=tuple(a + b for a in "aeimqu" for b in "bdfhjlnprtvxz ")),
    ),
)
"""A stop string whose first letters are of the step before is not found.

Plain decoding emits one token per step, so this engine would never stop there: the search knows drafts only.
"""


@dataclass(frozen=True, slots=True)
class _BonusAfterEnd(StopRule):
    def cut(self, generated: Sequence[int], verdict: StepOutcome) -> TruncatedOutcome:
        cut = StopRule.cut(self, generated, verdict)
        ended = cut.reason is not None and len(verdict.emitted) == len(cut.verdict.emitted) + 1
        if not ended or verdict.emitted[-1].role is not Role.BONUS or cut.reason is FinishReason.LENGTH:
            return cut
        return replace(cut, verdict=verdict)


BONUS_AFTER_END = _stops_fault(
    "sgl-project/sglang#33758, #30291", _BonusAfterEnd, "end_at_last_draft", scenario=replace(END_TOKENS, gamma=1)
)
"""The bonus token is emitted although the last token of the draft, which was kept, ended the response.

The response ends with one token after its end. Ends at other places of a draft are right.
"""


@dataclass(frozen=True, slots=True)
class _CutShort(StopRule):
    def cut(self, generated: Sequence[int], verdict: StepOutcome) -> TruncatedOutcome:
        cut = StopRule.cut(self, generated, verdict)
        count = len(cut.verdict.emitted)
        if cut.reason is not FinishReason.LENGTH or count == 1:
            return cut
        return replace(cut, verdict=trim(cut.verdict, count - 1))


LENGTH_CUT_SHORT = _stops_fault("ikawrakow/ik_llama.cpp#2358", _CutShort, "length_in_draft", ANY_ARM, Scenario())
"""A response whose last step has several tokens ends before its limit, and says that the limit was reached.

The whole step is charged before its tokens are emitted. Responses whose last step has one token are right.
"""


@dataclass(frozen=True, slots=True)
class _OutOfOrder(StopRule):
    def text(self, tokens: Sequence[int], reason: FinishReason) -> str:
        late = list(tokens)
        for at in range(HELD_BACK, len(late), HELD_BACK):
            late[at - 1], late[at] = late[at], late[at - 1]
        return self.decode(late) if reason is FinishReason.LENGTH else StopRule.text(self, tokens, reason)


TEXT_OUT_OF_ORDER = _stops_fault("ikawrakow/ik_llama.cpp#1274", _OutOfOrder, "kept_whole", ANY_ARM, Scenario())
"""The text has tokens in another order than the response: accepted drafts overtake a token that is held back.

A token waits for the search for stop strings, and drafted tokens are delivered without it. The token ids are right.
"""
