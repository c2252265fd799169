"""Searches for a small suite: one request, or as few as give the verdict, then everything else.

The search repeats all steps until none changes anything.
"""

from dataclasses import dataclass
from typing import Final

from audit.errors import CannotDecide
from audit.minimize import steps
from audit.minimize.start import MinimizeStart
from audit.minimize.trial import Trials
from audit.suite.spec import Suite

STEPS: Final[tuple[steps.Step, ...]] = (
    steps.shorter,
    steps.less_neighbour,
    steps.smaller_batch,
    steps.shorter_drafts,
    steps.shorter_prompts,
    steps.plainer_sampling,
)
"""Lengths come first, because shorter requests make every later trial faster."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The smallest suite found."""

    suite: Suite
    alone: bool
    """True if one request is enough."""
    complete: bool
    """True if no limit ended the search early."""
    trials: int
    tokens: int


def search(start: MinimizeStart, trials: Trials) -> SearchResult:
    """Minimise. Raises CannotDecide: the verdict does not reproduce."""
    suite, before = _first(start, trials), None
    while before != suite:
        before = suite
        for step in STEPS:
            suite = step(suite, trials)
        suite = _fewer(suite, start, trials)
    return SearchResult(
        trials.as_tried(suite), len(steps.keys_of(suite)) == 1, not trials.cut_short, trials.count, trials.tokens
    )


def _first(start: MinimizeStart, trials: Trials) -> Suite:
    """The suite of the request alone if that is enough, else of as few requests as give the verdict."""
    alone = steps.with_keys(start.suite, [start.subject])
    if trials.stays(alone, f"{start.request} alone"):
        return alone
    if not trials.stays(start.suite, f"all {len(steps.keys_of(start.suite))} requests of the arm", again=True):
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
    """Drop the requests that the verdict does not need, but never one that a finding names."""
    return steps.fewer_requests(suite, trials, start.subject if start.named else None)
