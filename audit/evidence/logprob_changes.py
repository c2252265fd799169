"""Log-probabilities of equal tokens in two arms."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.evidence.pairing import Pair, pair_arms
from audit.evidence.records import ArmRecord
from engine.core.sequences import agreeing
from engine.core.types import Floats

OF_PROMPT = "prompt_logprobs"
"""Of a record's facts: the log-probability of each token of the prompt, None for the first."""


FLOOR_TIMES = 10.0
"""Factor on the largest difference between two plain runs, the limit of a single difference."""


@dataclass(frozen=True, slots=True)
class LogprobChanges:
    """[n] at equal prefixes; `pair` and `index` locate each, `prompt` is the cluster."""

    reference: str
    ours: Floats
    theirs: Floats
    pair: NDArray[np.int64]
    index: NDArray[np.int64]
    prompt: NDArray[np.int64]
    pairs: tuple[Pair, ...]
    part: str = "token"
    """Of what the index counts tokens."""

    @property
    def value(self) -> Floats:
        """[n] candidate minus reference."""
        return self.ours - self.theirs


def _of_answer(pair: Pair) -> tuple[Floats, Floats]:
    """[t] log-probabilities of the tokens before the pair diverges, ours and theirs."""
    left, right = pair.candidate.trace.logprob, pair.baseline.trace.logprob
    shared = min(agreeing(pair.candidate.tokens, pair.baseline.tokens), len(left), len(right))
    return left[:shared], right[:shared]


def _of_prompt(pair: Pair) -> tuple[Floats, Floats]:
    """[t - 1] those of the prompt's tokens; the first has none."""
    sides = (item.trace.header.facts.get(OF_PROMPT) or () for item in (pair.candidate, pair.baseline))
    left, right = (np.array([np.nan if x is None else x for x in side][1:], dtype=np.float64) for side in sides)
    shared = min(len(left), len(right))
    return left[:shared], right[:shared]


def changes(
    ours: ArmRecord, theirs: ArmRecord, reference: str, sides: Callable[[Pair], tuple[Floats, Floats]] = _of_answer
) -> LogprobChanges:
    """Differences at equal prefixes; places without a reference number are left out."""
    pairs = pair_arms(ours, theirs).pairs
    cases = sorted({pair.candidate.case_id for pair in pairs})
    left, right = [np.empty(0)], [np.empty(0)]
    owner, index, prompt = [np.empty(0, int)], [np.empty(0, int)], [np.empty(0, int)]
    for i, pair in enumerate(pairs):
        own, other = sides(pair)
        kept = np.flatnonzero(np.isfinite(other))
        left.append(own[kept])
        right.append(other[kept])
        owner.append(np.full(len(kept), i))
        index.append(kept)
        prompt.append(np.full(len(kept), cases.index(pair.candidate.case_id)))
    at, place, cluster = (np.concatenate(item).astype(np.int64) for item in (owner, index, prompt))
    part = "prompt token" if sides is _of_prompt else "token"
    return LogprobChanges(reference, np.concatenate(left), np.concatenate(right), at, place, cluster, pairs, part)
