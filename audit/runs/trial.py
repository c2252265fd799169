"""A trial before a suite's first run: some of its cases through every arm, in a store that is thrown away.

It measures lengths, spreads, units per token and speed. It says nothing of situations, which need a whole run, and adds
no directed requests, because a batch lacks more situations than a run.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from audit.runs.prepare import prepare, require_engines
from audit.runs.runner import Progress, run
from audit.runs.sizing import RunHistory
from audit.store import Store
from audit.suite.allowances import Allowances
from audit.suite.spec import Suite

FEWEST: Final = 4
"""Cases of a trial: the length of a single answer says little, and an engine's start would outweigh it."""


def shortened(suite: Suite) -> Suite:
    """The suite with one batch of its cases or a few more, spread evenly over all of them.

    Each runs once, or twice if the suite repeats it: what one prompt's answers differ by needs two.
    """
    cases, count = suite.cases, min(max(suite.batch_size, FEWEST), len(suite.cases))
    arms = (replace(arm, coverage=replace(arm.coverage, directed=False)) for arm in suite.arms)
    chosen = tuple(cases[i * len(cases) // count] for i in range(count))
    return replace(suite, cases=chosen, samples=min(2, suite.samples), arms=tuple(arms))


def trial(suite: Suite, progress: Progress, allowed: Allowances) -> RunHistory:
    """Run the shortened suite; its arms and its speed are the history of a plan.

    Raises:
        UserError: the suite cannot run.
    """
    prepared = prepare(shortened(suite), allowed=allowed)
    # starting engines is no part of the speed
    require_engines(prepared)
    with (
        tempfile.TemporaryDirectory(prefix="specaudit-trial-") as folder,
        Store.open(str(Path(folder) / "trial.db"), create=True) as store,
    ):
        done = store.load_run(run(prepared, store, progress).run)
        checks = tuple(store.checks(done.ulid))
    return RunHistory(same=done, checks=checks, here=done, trial=True)
