"""The law tests, by component and stratum.

Every stratum is fixed before its tokens are drawn: the position in the block, or that all drafted tokens were accepted.
No test selects accepted tokens, because that selection is not fixed beforehand (they follow min(p, q)).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.evidence.law.sums import BONUS, EVERY, LAST_DEPTH, LawSums, TokenStratum
from audit.evidence.law.table import LawTable, moments_of
from audit.stats.anytime.alternatives import ranking, summary
from audit.stats.anytime.scores import LOG_FLOOR, ScoreSums, score_test_of
from audit.stats.pit import SmoothSums, smooth_test_of

MIN_TOKENS = 15
"""Minimum number of tokens of a tested stratum."""
MIXTURE = "named alternatives"
TRANSFORMS: Final[Mapping[str, str]] = {
    "tokens ~ p, by rank": "rank",
    "tokens ~ p, by id": "id",
    "tokens ~ p, by q / p": "ratio",
}


@dataclass(frozen=True, slots=True)
class ComponentTest:
    """Result of one test. `effect` is measured in `unit`."""

    name: str
    stratum: str
    n: int
    statistic: float
    p: float
    effect: float
    unit: str

    @property
    def title(self) -> str:
        """Name of the test in reports."""
        return f"{self.name} ({self.stratum})"


def battery(law: LawSums, generator: np.random.Generator) -> tuple[ComponentTest, ...]:
    """Run all tests for which there are enough tokens. `generator` simulates small-sample laws."""
    return (*_pooled(law, generator), *_by_depth(law, generator), *_by_role(law, generator))


def _pooled(law: LawSums, generator: np.random.Generator) -> Iterator[ComponentTest]:
    for name, transform in TRANSFORMS.items():
        yield from _smooth(name, "all", law.smooth(transform), generator)
    yield from _scores(law, EVERY, "all")
    if law.process.n >= MIN_TOKENS:
        result, leader = summary(law.process), ranking(law.process, 1)[0]
        name = f"{MIXTURE}, led by {leader.name} (share {leader.share:.2g})"
        yield ComponentTest(name, "all", result.n, result.log_max, result.p, result.log_max, "nats")


def token_tests(table: LawTable, stratum: str, generator: np.random.Generator) -> Iterator[ComponentTest]:
    """The tests of all tokens of a table, whatever their place in a block; the stratum is their name."""
    for name, u in zip(TRANSFORMS, (table.rank_pit, table.id_pit, table.ratio_pit), strict=True):
        yield from _smooth(name, stratum, SmoothSums.none().add(u[~np.isnan(u)]), generator)
    leak = table.leak[table.known]
    yield from _score(LOG_P, stratum, ScoreSums.of(table.logp[:, 0], moments_of(table.logp)))
    yield from _score(LEAK_OF_Q, stratum, ScoreSums.of(leak[:, 0], moments_of(leak)))


def _by_depth(law: LawSums, generator: np.random.Generator) -> Iterator[ComponentTest]:
    for value in sorted(law.depths) if len(law.depths) > 1 else ():
        stratum = f"block position {value}{' and on' if value == LAST_DEPTH else ''}"
        yield from _smooth("tokens ~ p, by rank", stratum, law.smooth("rank", TokenStratum(value)), generator)
        yield from _scores(law, TokenStratum(value), stratum)


def _by_role(law: LawSums, generator: np.random.Generator) -> Iterator[ComponentTest]:
    yield from _smooth("tokens ~ p, by rank", "bonus", law.smooth("rank", BONUS), generator)
    yield from _score(LOG_P, "bonus", law.logp(BONUS))
    yield from _smooth("drafted ~ q", "drafted", law.smooth("draft"), generator)
    yield from _smooth("recovered ~ residual, by rank", "recovered", law.smooth("residual rank"), generator)
    yield from _smooth("recovered ~ residual, by id", "recovered", law.smooth("residual id"), generator)
    test = law.accepted()
    if test is not None and test.n >= MIN_TOKENS:
        effect = (test.observed - test.expected) / test.n
        yield ComponentTest("accepted ~ min(1, p / q)", "drafted", test.n, test.z, test.p, effect, "acceptance rate")


def _scores(law: LawSums, tokens: TokenStratum, stratum: str) -> Iterator[ComponentTest]:
    yield from _score(LOG_P, stratum, law.logp(tokens))
    yield from _score(LEAK_OF_Q, stratum, law.leak(tokens))


@dataclass(frozen=True, slots=True)
class _Score:
    """A score's name, its largest step, and the unit of its mean."""

    name: str
    step: float
    unit: str


LOG_P = _Score("log p", float(-np.log(LOG_FLOOR)), "nats per token")
LEAK_OF_Q = _Score("leak of q", 1.0, "mean q / (p + q)")


def _score(score: _Score, stratum: str, sums: ScoreSums) -> Iterator[ComponentTest]:
    if sums.n >= MIN_TOKENS:
        test = score_test_of(sums, score.step)
        yield ComponentTest(score.name, stratum, test.n, test.z, test.p, test.effect, score.unit)


def _smooth(name: str, stratum: str, sums: SmoothSums, generator: np.random.Generator) -> Iterator[ComponentTest]:
    if sums.n >= MIN_TOKENS:
        test = smooth_test_of(sums, generator)
        largest = max(test.components, key=abs)
        yield ComponentTest(name, stratum, test.n, test.statistic, test.p, largest, "largest Legendre component")
