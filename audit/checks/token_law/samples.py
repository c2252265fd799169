"""Samples of one prompt: each is drawn anew, so it soon leaves the earlier ones.

Given an earlier sample, the next one begins with its first l tokens with the product of their probabilities. The chance
of a beginning as long as the one seen is therefore a p-value, whatever the law is; several earlier samples multiply
it by their number at most. Given the past, each sample's p-value is valid, so Fisher's sum over all of them is too.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.evidence.law.battery import ComponentTest
from audit.stats.laws import chi2_sf
from engine.core.sequences import agreeing
from engine.core.types import Floats

TEST: Final = "samples of a prompt share what they begin with"


@dataclass(frozen=True, slots=True)
class _Sample:
    tokens: Sequence[int]
    logs: Floats
    """[n + 1] of the beginnings' probabilities."""


class SharedBeginnings:
    """The samples of each prompt, in the order in which they are added."""

    def __init__(self) -> None:
        self._earlier: dict[str, list[_Sample]] = defaultdict(list)
        self._chances: list[float] = []
        self._whole = 0

    def add(self, case: str, tokens: Sequence[int], p: Floats) -> None:
        """A sample with its tokens' probabilities; a token whose probability is 0 here counts as certain."""
        earlier = self._earlier[case]
        if earlier:
            shared = [agreeing(sample.tokens, tokens) for sample in earlier]
            least = min(float(sample.logs[length]) for sample, length in zip(earlier, shared, strict=True))
            self._chances.append(min(0.0, math.log(len(earlier)) + least))
            self._whole += max(shared) == len(tokens)
        logs = np.log(np.where(p > 0.0, np.minimum(p, 1.0), 1.0))
        earlier.append(_Sample(tokens, np.concatenate([[0.0], np.cumsum(logs)])))

    def tested(self) -> list[ComponentTest]:
        """The test, where a prompt has several samples."""
        count = len(self._chances)
        if not count:
            return []
        statistic = -2.0 * sum(self._chances)
        p = float(chi2_sf(statistic, 2 * count))
        return [
            ComponentTest(TEST, "all", count, statistic, p, self._whole / count, "of samples repeat an earlier one")
        ]
