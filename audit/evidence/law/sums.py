"""Sums of an arm for the law tests, request by request: memory does not grow with the tokens.

Sums of transforms are kept for each test. Scores wait in columns, on disk from a length on, because their sums are
numpy's, bit for bit, as over a whole table.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.law.table import LawEvidence, LawTable
from audit.evidence.verdicts import Finding
from audit.stats.acceptance.expected import BernoulliTest, bernoulli_test_of
from audit.stats.anytime import alternatives
from audit.stats.anytime.scores import ScoreSums
from audit.stats.pit import SmoothSums, legendre
from audit.stats.spooled import Block, Mask, SpooledColumns, every_row
from engine.core.types import Floats

LAST_DEPTH: Final = 7
"""Block positions from this one on form one stratum."""
LOGP: Final = ("logp_deviation", "logp_variance", "logp_third")
LEAK: Final = ("leak_deviation", "leak_variance", "leak_third")
ARGMAX: Final = ("argmax_deviation", "argmax_variance", "argmax_third", "argmax_span", "argmax_distance")
FLOATS: Final = (*LOGP, *LEAK, "leak_span", "distance", "seen", "tail")
PLACES: Final = ("depth", "bonus", "known")


@dataclass(frozen=True, slots=True)
class TokenStratum:
    """Tokens that are tested together, chosen before they were drawn; `depth` is -1 for every place in a block."""

    depth: int = -1
    bonus: bool = False

    def mask(self, block: Block) -> NDArray[np.bool_]:
        """[n] the rows of the stratum."""
        if self.bonus:
            return np.asarray(block["bonus"])
        return every_row(block) if self.depth < 0 else np.asarray(block["depth"] == self.depth)


EVERY: Final = TokenStratum()
BONUS: Final = TokenStratum(bonus=True)


@dataclass(frozen=True, slots=True)
class LeakSums:
    """The scores in the direction of a draft, the sum of their means under it minus those under p, and the total
    variation between it and p, summed over tokens.
    """

    scores: ScoreSums
    span: float
    distance: float


class LawSums:
    """The sums of the requests so far; `process` is the evidence for each named alternative."""

    def __init__(self) -> None:
        self.process = alternatives.start()
        self.impossible: list[Finding] = []
        self.known = 0
        """Tokens with a known q."""
        self.depths: set[int] = set()
        self._smooth: dict[tuple[str, TokenStratum], SmoothSums] = defaultdict(SmoothSums.none)
        self._tokens = SpooledColumns({"depth": "u1", "bonus": "?", "known": "?", **dict.fromkeys(FLOATS, "f8")})
        self._argmax = SpooledColumns(dict.fromkeys(ARGMAX, "f8"))
        self._accept = SpooledColumns({"accepted": "?", "probability": "f8"})

    @property
    def n(self) -> int:
        """Emitted tokens."""
        return len(self._tokens)

    def add(self, request: LawEvidence) -> None:
        """Add the next request."""
        table = request.table
        self.process = request.process
        self.impossible.extend(request.impossible)
        self.known += int(np.count_nonzero(table.known))
        depth = np.minimum(table.depth, LAST_DEPTH)
        self.depths.update(np.unique(depth).tolist())
        self._add_transforms(table, depth)
        self._add_scores(table, depth)
        tested = table.accept[~np.isnan(table.accept[:, 0])]
        self._accept.append({"accepted": tested[:, 0] > 0, "probability": tested[:, 1]})

    def _add_transforms(self, table: LawTable, depth: NDArray[np.int64]) -> None:
        columns = {
            "rank": table.rank_pit,
            "id": table.id_pit,
            "ratio": table.ratio_pit,
            "draft": table.draft_pit,
            "residual rank": table.residual_rank_pit,
            "residual id": table.residual_id_pit,
        }
        held = [u[~np.isnan(u)] for u in columns.values()]
        # one call for all columns: half of its cost does not depend on their length
        joined = np.split(legendre(np.concatenate(held)), np.cumsum([len(u) for u in held[:-1]]))
        polynomials = dict(zip(columns, joined, strict=True))
        rank = polynomials.pop("rank")
        for name, item in polynomials.items():
            self._smooth[name, EVERY] = self._smooth[name, EVERY].add_polynomials(item)
        known = ~np.isnan(table.rank_pit)
        depth, bonus = depth[known], table.bonus[known]
        parts = {EVERY: rank, BONUS: rank[bonus]}
        parts |= {TokenStratum(value): rank[depth == value] for value in np.unique(depth).tolist()}
        for stratum, part in parts.items():
            self._smooth["rank", stratum] = self._smooth["rank", stratum].add_polynomials(part)

    def _add_scores(self, table: LawTable, depth: NDArray[np.int64]) -> None:
        self._tokens.append(
            {
                **dict(zip(LOGP, _deviations(table.logp), strict=True)),
                **dict(zip(LEAK, _deviations(table.leak), strict=True)),
                "leak_span": table.leak[:, 4] - table.leak[:, 1],
                "distance": table.distance[:, 0],
                "seen": table.seen,
                "tail": table.tail,
                "depth": depth,
                "bonus": table.bonus,
                "known": table.known,
            }
        )
        if not self.known:
            span, distance = table.argmax[:, 4] - table.argmax[:, 1], table.distance[:, 1]
            values = (*_deviations(table.argmax), span, distance)
            self._argmax.append(dict(zip(ARGMAX, values, strict=True)))

    def smooth(self, name: str, stratum: TokenStratum = EVERY) -> SmoothSums:
        """The sums of a transform's polynomials over a stratum."""
        return self._smooth[name, stratum]

    def logp(self, stratum: TokenStratum) -> ScoreSums:
        """The log p scores of a stratum."""
        return self._scores(LOGP, stratum.mask)

    def leak(self, stratum: TokenStratum) -> ScoreSums:
        """The scores in the direction of q, of the stratum's tokens with a known q."""
        return self._scores(LEAK, lambda block: stratum.mask(block) & block["known"])

    def _scores(self, names: Sequence[str], mask: Mask) -> ScoreSums:
        sums = self._tokens.sums(names, lambda block: [block[name] for name in names], mask, PLACES)
        return ScoreSums(sums.n, *sums.totals)

    def accepted(self) -> BernoulliTest | None:
        """The test of the acceptances of tokens that the chain rule tested; None without any."""
        return bernoulli_test_of(self._accept) if len(self._accept) else None

    def towards_draft(self) -> LeakSums:
        """The leak towards q if any q is known, else towards the argmax of p."""
        if not self.known:
            sums = self._argmax.sums(ARGMAX, lambda block: [block[name] for name in ARGMAX])
            return LeakSums(ScoreSums(sums.n, *sums.totals[:3]), *sums.totals[3:])
        names = (*LEAK, "leak_span", "distance")
        sums = self._tokens.sums(
            names, lambda block: [block[name] for name in names], lambda block: np.asarray(block["known"]), PLACES
        )
        return LeakSums(ScoreSums(sums.n, *sums.totals[:3]), *sums.totals[3:])

    @property
    def tail(self) -> float:
        """Mean mass of p in the tails."""
        return self._tokens.sums(("tail",), lambda block: [block["tail"]]).totals[0] / self.n

    @property
    def seen(self) -> float:
        """Total variation between p and q on the cells, summed over the tokens with a known q."""
        known = self._tokens.sums(
            ("seen",), lambda block: [block["seen"]], lambda block: np.asarray(block["known"]), PLACES
        )
        return known.totals[0]

    def close(self) -> None:
        """Give up the columns."""
        for columns in (self._tokens, self._argmax, self._accept):
            columns.close()


def _deviations(columns: Floats) -> tuple[Floats, Floats, Floats]:
    """Observed minus expected score, variance and third moment, from score columns [n, 4 or 5]."""
    return columns[:, 0] - columns[:, 1], columns[:, 2], columns[:, 3]
