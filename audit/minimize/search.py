"""The search for a small suite: the request alone, or as few requests as get the verdict, then everything else.

The steps are taken in turn until none changes anything. Knows nothing about
stores and files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from audit.errors import CannotDecide
from audit.minimize.start import MinimizeStart
from audit.minimize.steps import (
    Step,
    fewer_requests,
    keys_of,
    less_neighbour,
    plainer_sampling,
    shorter,
    shorter_drafts,
    shorter_prompts,
    smaller_batch,
    with_keys,
)
from audit.minimize.trial import Trials
from audit.suite.spec import Suite

STEPS: Final[tuple[Step, ...]] = (
    shorter,
    less_neighbour,
    smaller_batch,
    shorter_drafts,
    shorter_prompts,
    plainer_sampling,
)
"""Lengths first: every later trial is the quicker for it."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The smallest suite that was found."""

    suite: Suite
    alone: bool
    """One request is enough."""
    complete: bool
    """No limit kept anything from being tried."""
    trials: int
    tokens: int


def search(start: MinimizeStart, trials: Trials) -> SearchResult:
    """Minimise.

    Raises:
        CannotDecide: the verdict does not come again.
    """
    suite, before = _first(start, trials), None
    while before != suite:
        before = suite
        for step in STEPS:
            suite = step(suite, trials)
        suite = _fewer(suite, start, trials)
    return SearchResult(
        trials.as_tried(suite), len(keys_of(suite)) == 1, not trials.cut_short, trials.count, trials.tokens
    )


def _first(start: MinimizeStart, trials: Trials) -> Suite:
    """The request alone if that is enough, else as few as get the verdict."""
    alone = with_keys(start.suite, [start.subject])
    if trials.stays(alone, f"{start.request} alone"):
        return alone
    if not trials.stays(start.suite, f"all {len(keys_of(start.suite))} requests of the arm", again=True):
        if trials.cut_short:
            problem = f"{start.request} alone does not give the verdict, and the limit leaves no room for all requests"
            raise CannotDecide(f"{problem}; raise --max-tokens")
        why = f" ({trials.last_problem})" if trials.last_problem else ""
        raise CannotDecide(
            f"{start.fault.check} finds no fault in arm {start.fault.arm} now, neither in {start.request} alone nor in "
            f"all of the run's requests{why}: the verdict of run {start.run.ulid} does not reproduce"
        )
    return _fewer(start.suite, start, trials)


def _fewer(suite: Suite, start: MinimizeStart, trials: Trials) -> Suite:
    """Without the requests that the verdict does not need; one that a finding names is never left out."""
    return fewer_requests(suite, trials, start.subject if start.named else None)
