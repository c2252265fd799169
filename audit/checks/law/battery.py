"""The law tests over a table, by component and stratum.

Every stratum is fixed before its tokens are drawn: the position in the block,
or that all drafted tokens were accepted. No test selects accepted tokens, because
that selection is not fixed beforehand (they follow min(p, q)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.checks.law.table import LawEvidence, LawTable, moments_of
from audit.stats.acceptance import bernoulli_test
from audit.stats.alternatives import ranking, summary
from audit.stats.pit import smooth_test
from audit.stats.scores import LOG_FLOOR, score_test
from engine.core.types import Floats

MIN_TOKENS = 15
"""Minimum number of tokens of a tested stratum."""
LAST_DEPTH = 7
"""Block positions from this one on form one stratum."""
MIXTURE = "named alternatives"
LOG_STEP = float(-np.log(LOG_FLOOR))


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


def battery(law: LawEvidence, generator: np.random.Generator) -> tuple[ComponentTest, ...]:
    """Run all tests for which the table has enough tokens. `generator` simulates small-sample laws."""
    table = law.table
    found = [*_pooled(law, generator), *_by_depth(table, generator), *_by_role(table, generator)]
    return tuple(found)


def _pooled(law: LawEvidence, generator: np.random.Generator) -> Iterator[ComponentTest]:
    yield from token_tests(law.table, "all", generator)
    if law.process.n >= MIN_TOKENS:
        found, leader = summary(law.process), ranking(law.process, 1)[0]
        name = f"{MIXTURE}, led by {leader.name} (share {leader.share:.2g})"
        yield ComponentTest(name, "all", found.n, found.log_max, found.p, found.log_max, "nats")


def token_tests(table: LawTable, stratum: str, generator: np.random.Generator) -> Iterator[ComponentTest]:
    """The tests of all tokens of a table, whatever their place in a block; the stratum is their name."""
    everything = np.ones(len(table.depth), dtype=np.bool_)
    yield from _smooth("tokens ~ p, by rank", stratum, table.rank_pit, generator)
    yield from _smooth("tokens ~ p, by id", stratum, table.id_pit, generator)
    yield from _smooth("tokens ~ p, by q / p", stratum, table.ratio_pit, generator)
    yield from _scores(table, everything, stratum)


def _by_depth(table: LawTable, generator: np.random.Generator) -> Iterator[ComponentTest]:
    depth = np.minimum(table.depth, LAST_DEPTH)
    found = np.unique(depth)
    for value in found if len(found) > 1 else ():
        stratum = f"block position {value}{' and on' if value == LAST_DEPTH else ''}"
        mask = depth == value
        yield from _smooth("tokens ~ p, by rank", stratum, table.rank_pit[mask], generator)
        yield from _scores(table, mask, stratum)


def _by_role(table: LawTable, generator: np.random.Generator) -> Iterator[ComponentTest]:
    yield from _smooth("tokens ~ p, by rank", "bonus", table.rank_pit[table.bonus], generator)
    yield from _score("log p", "bonus", table.logp[table.bonus], LOG_STEP, "nats per token")
    yield from _smooth("drafted ~ q", "drafted", table.draft_pit, generator)
    yield from _smooth("recovered ~ residual, by rank", "recovered", table.residual_rank_pit, generator)
    yield from _smooth("recovered ~ residual, by id", "recovered", table.residual_id_pit, generator)
    tested = table.accept[~np.isnan(table.accept[:, 0])]
    if len(tested) >= MIN_TOKENS:
        test = bernoulli_test(tested[:, 0] > 0, tested[:, 1])
        effect = (test.observed - test.expected) / test.n
        yield ComponentTest("accepted ~ min(1, p / q)", "drafted", test.n, test.z, test.p, effect, "acceptance rate")


def _scores(table: LawTable, mask: NDArray[np.bool_], stratum: str) -> Iterator[ComponentTest]:
    yield from _score("log p", stratum, table.logp[mask], LOG_STEP, "nats per token")
    yield from _score("leak of q", stratum, table.leak[mask & table.known], 1.0, "mean q / (p + q)")


def _score(name: str, stratum: str, columns: Floats, step: float, unit: str) -> Iterator[ComponentTest]:
    if len(columns) >= MIN_TOKENS:
        test = score_test(columns[:, 0], moments_of(columns), step)
        yield ComponentTest(name, stratum, test.n, test.z, test.p, test.effect, unit)


def _smooth(name: str, stratum: str, u: Floats, generator: np.random.Generator) -> Iterator[ComponentTest]:
    u = u[~np.isnan(u)]
    if len(u) >= MIN_TOKENS:
        test = smooth_test(u, generator)
        largest = max(test.components, key=abs)
        yield ComponentTest(name, stratum, test.n, test.statistic, test.p, largest, "largest Legendre component")
