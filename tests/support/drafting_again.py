"""Drafts again along a record with the parts of a test's loop."""

import numpy as np

from engine.core.types import QKind
from engine.decode.redrafting import Redrafter, recorded_steps
from engine.decode.seams import EngineParts
from engine.record.trace import decode, steps_of


def redrafter(loop):
    """Drafts again with the parts of a loop of one row that has not run."""
    parts = EngineParts(verifier=loop._verifier)
    return Redrafter(loop._target, loop._proposer, parts, loop._cache, loop._options, loop._decode)


def again(loop, request, trace):
    """The record of the drafts made again."""
    return decode(redrafter(loop).run(request, recorded_steps(trace)).trace)


def require_the_same_drafts(ours, theirs, atol=1e-12):
    """The same trees step by step, and the same q of every node that the recorded decision examined."""
    for column in ("position", "n_drafted", "node_token", "node_parent", "token", "role"):
        np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column), column)
    for a, b in zip(steps_of(ours), steps_of(theirs), strict=True):
        if a.q_kind is QKind.FULL:
            nodes = b.examined.start + ours.examined_node[a.examined]
            np.testing.assert_allclose(theirs.q_rows[nodes], ours.q_rows[a.examined], atol=atol)
        assert np.all(theirs.examined_accepted[b.examined] == 0)
