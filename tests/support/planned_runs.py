"""A run whose records are made from known plans, so that a test can count what a query or a page shows."""

from __future__ import annotations

from audit.store import NewRequest, Store
from tests.audit.store.build import generation, start

PLANS = [((4, index % 5), (4, 4), (2, 1), (0, 0))[index % 3 :] for index in range(11)]
"""Drafted and kept tokens of each step, of each request."""


def filled(store: Store, **changes: object) -> str:
    """A run of eleven speculating requests beside plain ones; every second pair has the same record."""
    run = store.begin_run(start(**changes))
    for index, plan in enumerate(PLANS):
        same = generation(plan, seed=index)
        other = same if index % 2 else generation(((0, 0), (0, 0)), seed=index)
        domain = "code" if index % 3 else "chat"
        store.add_requests(run, [NewRequest("base", domain, f"c{index // 2}", index % 2, other)])
        store.add_requests(run, [NewRequest("spec", domain, f"c{index // 2}", index % 2, same)])
    return run
