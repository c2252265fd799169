"""Drafts again along a record with the parts of a test's loop."""

from dataclasses import replace

import numpy as np

from engine.core.types import QKind
from engine.decode.redrafting import Redrafter, recorded_steps
from engine.decode.redraws import Redraws
from engine.decode.seams import EngineParts
from engine.record.trace import decode, steps_of
from tests.engine.build import make_loop


def redrafter(loop, redraws=None):
    """Drafts again with the parts of a loop of one row that has not run, whose proposer draws with `redraws`."""
    parts = EngineParts(verifier=loop._verifier)
    redraws = redraws or Redraws()
    return Redrafter(loop._target, loop._proposer, parts, loop._cache, loop._options, loop._decode, None, redraws)


def along(setup, request, trace):
    """The record of the drafts made again, each token after the recorded ones."""
    redraws = Redraws()
    loop = make_loop(replace(setup, rows=1), redraws=redraws)
    return decode(redrafter(loop, redraws).run(request, recorded_steps(trace)).trace)


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
