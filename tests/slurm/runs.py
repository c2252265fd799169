"""A run whose requests an executor of a test decodes."""

from __future__ import annotations

from audit.api.running import Quiet
from audit.executors.job import job_of
from audit.executors.spread import Spread
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from audit.suite.allowances import NOTHING
from audit.suite.loader import load_suite
from tests.audit.executors.spread_suites import facts


def spread_run(suite, folder, executor):
    """What two workers of the executor have in common with the run of one process."""
    prepared = prepare(load_suite(suite))
    with Store.open(str(folder / "slurm.db"), create=True) as store:
        fill = Spread(prepared, job_of(prepared, 1, NOTHING), executor, 2).fill
        return facts(store.url, run(prepared, store, Quiet(), fill=fill).run)
