"""The end of a generation: end tokens, stop strings, length; exact inside a draft.

The tokens of a step are examined one by one; tokens after the first end are dropped and never counted, accepted or not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.core.sequences import agreeing
from engine.core.types import FinishReason, SamplingParams, StepOutcome

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class TruncatedOutcome:
    """A verdict cut at the end, and the reason for the end (None: the generation continues)."""

    verdict: StepOutcome
    reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class StopRule:
    """The ends of one request. `decode` turns generated tokens into text."""

    params: SamplingParams
    eos_ids: tuple[int, ...]
    decode: Decode

    def cut(self, generated: Sequence[int], verdict: StepOutcome) -> TruncatedOutcome:
        """Cut a step's decisions at the first end; `generated` are the tokens before the step."""
        tokens = list(generated)
        for count, emitted in enumerate(verdict.emitted, start=1):
            tokens.append(emitted.token)
            reason = self._reason(tokens)
            if reason is not None:
                return TruncatedOutcome(trim(verdict, count), reason)
        return TruncatedOutcome(verdict, None)

    def _reason(self, tokens: list[int]) -> FinishReason | None:
        """The reason why the generation ends with its last token; None if it continues."""
        if tokens[-1] in self.eos_ids and not self.params.ignore_eos:
            return FinishReason.EOS
        if tokens[-1] in self.params.stop_token_ids:
            return FinishReason.STOP
        if self.params.stop and len(tokens) >= self.params.min_tokens and self._stop_at(tokens) is not None:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(tokens) >= self.params.max_new_tokens else None

    def _stop_at(self, tokens: list[int]) -> int | None:
        """The start of a stop string that the last token completed; None without one."""
        text = self.decode(tokens)
        # the common prefix, not the shorter length: a token may complete a character of the text before it
        before = agreeing(self.decode(tokens[:-1]), text)
        starts = (text.find(stop, max(0, before - len(stop) + 1)) for stop in self.params.stop)
        return min((start for start in starts if start >= 0), default=None)

    def stop_begins(self, tokens: Sequence[int], reason: FinishReason) -> int | None:
        """Index of the token in which the stop string begins that ended the generation; None without one."""
        start = self._ended_at(tokens, reason)
        if start is None:
            return None
        # the text of a prefix may lack the last characters, never have more than it
        return next(n for n in range(len(tokens)) if len(self.decode(tokens[: n + 1])) > start)

    def text(self, tokens: Sequence[int], reason: FinishReason) -> str:
        """The generation's text; a stop string and what follows it are not part of it."""
        return self.decode(tokens)[: self._ended_at(tokens, reason)]

    def _ended_at(self, tokens: Sequence[int], reason: FinishReason) -> int | None:
        """The start of the stop string that ended the generation; None without one."""
        return self._stop_at(list(tokens)) if reason is FinishReason.STOP and self.params.stop else None


def trim(verdict: StepOutcome, count: int) -> StepOutcome:
    """The first `count` emitted tokens and the decisions that led to them."""
    if count == len(verdict.emitted):
        return verdict
    if verdict.joint:
        cut = tuple(replace(item, accepted=item.accepted and item.node < count) for item in verdict.examined)
        return StepOutcome(verdict.emitted[:count], cut, joint=True)
    # an accepted token was examined exactly once as accepted; rejected siblings came before it
    left, examined = count, []
    for one in verdict.examined:
        if left == 0:
            break
        examined.append(one)
        left -= one.accepted
    # a recovered token is always the last one, so no residual is left
    return StepOutcome(verdict.emitted[:count], tuple(examined))
