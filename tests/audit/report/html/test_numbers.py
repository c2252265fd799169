"""Every number on a page equals the store's: the page is parsed, and each number is looked up by its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import html5lib
import pytest

from audit.evidence.verdicts import Verdict
from audit.report.html.registry import source_of
from audit.report.html.render import number, render_page
from audit.report.tables.results import Results, results
from audit.store import Store
from audit.text.unsafe import visible
from tests.audit.report.html.runs import StoredRuns, stored_runs

HTML = "{http://www.w3.org/1999/xhtml}"
KINDS = ("check", "arm", "count", "run", "detail", "finding")
PLANNED = ("needed", "tokens_needed")
"""Columns that no table of the store has."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StoredRuns:
    return stored_runs(f"sqlite:///{tmp_path_factory.mktemp('numbers') / 'audit.db'}")


def facts(page: str) -> list[tuple[str, str, str]]:
    """Key, value and shown text of every number of the page."""
    tree = html5lib.parse(page)
    return [
        (node.attrib["data-key"], node.attrib["value"], "".join(node.itertext())) for node in tree.iter(f"{HTML}data")
    ]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and numbers of a JSON value."""
    if isinstance(value, Mapping | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, int | float):
        yield path, value


def stored(shown: Results) -> Mapping[str, Any]:
    """The numbers of a run by the keys that the pages use."""
    found: dict[str, Any] = {"run:tokens": shown.run.tokens} | {f"count:{verdict.value}": 0 for verdict in Verdict}
    for check in shown.checks:
        place = f"check:{visible(check.arm)}:{check.check}"
        found |= {f"{place}:{column}": getattr(check, column) for column in ("n", "effect", "bound", "margin")}
        found[f"{place}:findings"] = len(check.findings)
        found[f"count:{check.verdict.value}"] += 1
        found |= {f"detail:{place[6:]}:{path}": value for path, value in leaves(check.details)}
        found |= {f"finding:{place[6:]}:{index}:step": finding.step for index, finding in enumerate(check.findings)}
    for arm in shown.run.arms:
        counts = ("requests", "prompt", "output", "steps", "drafted", "accepted")
        found |= {f"arm:{visible(arm.name)}:{column}": getattr(arm.counts, column) for column in counts}
    return found


@pytest.mark.medium
def test_every_number_of_the_page_is_the_stores(made):
    for run in (made.finished, made.judged, made.hostile):
        with Store.open(made.url, create=False, read_only=True) as store:
            page, known = render_page(source_of(store, run)), stored(results(store, run))
        looked_up = [
            (key, value, text)
            for key, value, text in facts(page)
            if key.split(":")[0] in KINDS and key.rpartition(":")[2] not in PLANNED
        ]
        assert len(looked_up) > 5
        for key, value, text in looked_up:
            assert float(value) == known[key], key
            assert text == number(known[key]), key


@pytest.mark.medium
def test_a_changed_number_is_seen(made):
    with Store.open(made.url, create=False, read_only=True) as store:
        page = render_page(source_of(store, made.finished))
    assert ("check:spec:replay:n", "12", "12") in facts(page)
    assert ("check:spec:replay:n", "13", "12") in facts(page.replace('value="12"', 'value="13"'))
