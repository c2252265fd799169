"""The law section draws what the check computes, from as many requests as its budget allows."""

from __future__ import annotations

import numpy as np
import pytest

from audit.evidence.law.table import tabulate
from audit.evidence.random_numbers import seed_of
from audit.report.html.registry import Nothing, source_of
from audit.report.html.sections import law
from audit.stats.anytime.alternatives import summary
from audit.store import Store
from tests.audit.report.html.runs import StoredRuns, stored_runs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StoredRuns:
    return stored_runs(f"sqlite:///{tmp_path_factory.mktemp('law') / 'audit.db'}")


def test_the_drawings_are_the_checks_own_numbers(made):
    with Store.open(made.url, create=False, read_only=True) as store:
        (shown,) = law.read(source_of(store, made.judged)).arms
        requests = list(store.load_arm(made.judged, "spec").requests)
        evidence = tabulate(requests, np.random.default_rng(seed_of(requests)))
    pits = evidence.table.rank_pit[~np.isnan(evidence.table.rank_pit)]
    assert shown.drawings.tokens == sum(len(request.tokens) for request in requests)
    assert sum(row[2] for row in shown.drawings.histogram.rows) == len(pits)
    assert [row[2] for row in shown.drawings.histogram.rows] == list(np.histogram(pits, bins=20, range=(0, 1))[0])
    assert shown.drawings.process.rows[0] == (0, 0.0)
    assert shown.drawings.process.rows[-1] == (evidence.process.n, round(summary(evidence.process).log_final, 6))


def test_a_long_arm_is_drawn_from_its_first_requests(made, monkeypatch):
    with Store.open(made.url, create=False, read_only=True) as store:
        requests = store.load_arm(made.judged, "spec").requests
        assert len(law.first_requests(requests, 1)) == 3
        monkeypatch.setattr(law, "NUMBERS", 8 * len(requests[0].tokens))
        assert len(law.first_requests(requests, 1)) == 1
        assert len(law.first_requests(requests, 2)) == 1
        source = source_of(store, made.judged)
        (shown,) = law.read(source).arms
        assert shown.drawings.tokens == len(requests[0].tokens) < shown.drawings.of_tokens


def test_a_brief_page_draws_nothing_and_says_so(made):
    with Store.open(made.url, create=False, read_only=True) as store:
        (shown,) = law.read(source_of(store, made.judged, brief=True)).arms
        assert shown.drawings is None
        assert "takes seconds" in shown.without
        assert isinstance(law.read(source_of(store, made.empty)), Nothing)
