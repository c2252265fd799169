"""The probability that a drafted token is kept, from the recorded p and q, and the tokens that a step emits."""

from collections.abc import Sequence

import numpy as np

from audit.evidence.decisions import Decisions, LumpedDecisions
from audit.evidence.records import RequestRecord
from audit.stats.acceptance.expected import chain_acceptance, coupled_acceptance, match_acceptance
from audit.stats.clusters import ClusterInterval, ratio_interval
from engine.core.types import Floats, Protocol


def expected_acceptance(made: Decisions) -> Floats:
    """[E] probability that a drafted token is kept at a position, NaN where no formula holds."""
    chance = np.full(len(made.token), np.nan)
    offered = made.known & (made.candidates > 0)
    fixed = np.flatnonzero(offered & made.one_hot)
    chance[fixed] = np.sum(np.where(made.q[fixed] > 0, made.p[fixed], 0.0), axis=1)
    drawn = np.flatnonzero(offered & ~made.one_hot)
    if made.lumped is not None:
        chance[fixed] = _on_cells(made, made.lumped)[fixed]
        whole = made.lumped.product if made.protocol is Protocol.GUMBEL else 1.0 - made.lumped.residual_sum
        chance[drawn] = np.nan if made.coupled else whole[drawn]
        return chance
    p, q = made.p[drawn], made.q[drawn]
    if made.protocol in (Protocol.CHAIN, Protocol.TREE):
        chance[drawn] = chain_acceptance(p, q)
    elif made.coupled:
        chance[drawn] = [coupled_acceptance(*pair) for pair in zip(p, q, strict=True)]
    else:
        chance[drawn] = match_acceptance(p, q)
    return chance


def _on_cells(made: Decisions, lumped: LumpedDecisions) -> Floats:
    """[E] p of deterministic drafts: the recorded p of a single draft, or the sum over cells if each has its own."""
    cells = np.where(made.q[:, -1] > 0, np.nan, np.sum(np.where(made.q > 0, made.p, 0.0), axis=1))
    return np.where(np.isnan(lumped.drafted_p), cells, lumped.drafted_p)


def tokens_per_forward(requests: Sequence[RequestRecord], confidence: float = 0.99) -> ClusterInterval:
    """Emitted tokens per target step, by the jackknife over prompts."""
    cases = np.unique([request.case_id for request in requests], return_inverse=True)[1].astype(np.int64)
    tokens, steps = ([float(count(request)) for request in requests] for count in (emitted_tokens, target_steps))
    return ratio_interval(np.array(tokens), np.array(steps), cases, confidence)


def emitted_tokens(request: RequestRecord) -> int:
    """The length of the answer."""
    return len(request.tokens)


def target_steps(request: RequestRecord) -> int:
    """The target's steps in its record."""
    return request.trace.steps
