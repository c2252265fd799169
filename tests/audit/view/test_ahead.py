"""Sections that are made while their reader looks at another: each once, and a failure belongs to its own page."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from audit.report.html.registry import sections
from audit.view import page
from audit.view.templates_of import Kept
from tests.audit.report.html.runs import stored_runs
from tests.audit.view.asking import Asking

LATER = [section.name for section in sections()[1:]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return stored_runs(f"sqlite:///{tmp_path_factory.mktemp('ahead') / 'audit.db'}")


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def rendered(monkeypatch):
    """How often each section was rendered; `failing` names one that cannot be."""
    counts, failing, real = Counter(), set(), page.render_section

    def counting(source, chosen, templates):
        counts[chosen.name] += 1
        if chosen.name in failing:
            raise RuntimeError("no such drawing")
        return real(source, chosen, templates)

    monkeypatch.setattr(page, "render_section", counting)
    return counts, failing


@pytest.mark.medium
def test_the_sections_of_an_opened_run_are_there_when_they_are_asked_for(runs, rendered):
    counts, _ = rendered
    ask = Asking(runs.url)
    ask.page(f"/runs/{runs.finished}/verdicts")
    until(lambda: all(counts[name] for name in LATER))
    for name in LATER:
        assert ask.page(f"/runs/{runs.finished}/{name}")
    assert {name: counts[name] for name in LATER} == dict.fromkeys(LATER, 1)


@pytest.mark.medium
def test_a_section_that_fails_is_its_own_pages_matter(runs, rendered):
    counts, failing = rendered
    failing.add("acceptance")
    ask = Asking(runs.url)
    ask.page(f"/runs/{runs.finished}/verdicts")
    until(lambda: all(counts[name] for name in LATER))
    assert ask.get(f"/runs/{runs.finished}/acceptance").status_code == 500
    assert counts["acceptance"] == 2
    assert ask.page(f"/runs/{runs.finished}/law")


def test_two_threads_make_a_result_once():
    kept, made, start = Kept(4), [], threading.Barrier(2)

    def make():
        time.sleep(0.05)
        made.append(threading.get_ident())
        return len(made)

    def ask(found):
        start.wait()
        found.append(kept.get("key", make))

    found = []
    threads = [threading.Thread(target=ask, args=(found,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, len(made)) == ([1, 1], 1)


def test_a_failure_is_not_kept():
    kept = Kept(4)
    with pytest.raises(ZeroDivisionError):
        kept.get("key", lambda: 1 // 0)
    assert kept.get("key", lambda: 3) == 3
