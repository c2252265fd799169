"""What a notebook shows of a run: a table without script or markup of others, and data frames."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import audit
from audit.errors import UserError
from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.store import NewCheck, NewRequest, RunStatus, Store
from tests.audit.store.build import COUNTS, generation, made_store, start

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>' onclick='x' \x1b[31m\u202e\u200b\x00\ud800"
    + "y" * 1_000_000
)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.names, self.text = set(), set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def hostile(tmp_path):
    url = str(tmp_path / "audit.db")
    text = HOSTILE.replace("\ud800", "").replace("\x00", "")
    with Store.open(url, create=True) as store:
        run = store.begin_run(replace(start(), suite_name=text[:200]))
        for arm in ("base", "spec"):
            store.add_requests(run, [NewRequest(arm, "d", "c", 0, generation(((2, 1),), seed=1, text="x"))])
        store.add_check(
            run, NewCheck("spec", "replay", "replay", Level.L4, CheckResult(Verdict.FAULT, text, 1), COUNTS)
        )
        store.finish_run(run, RunStatus.FINISHED, 1)
    return audit.open_store(url).run()


@pytest.mark.medium
def test_a_run_is_a_table_and_hostile_text_is_text(hostile):
    page = hostile._repr_html_()
    read = Tags()
    read.feed(page)
    assert read.tags == {"div", "p", "b", "br", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert read.names == {"style"}
    assert "<script>alert(1)</script>" in read.text
    assert page.isprintable()
    assert len(page) < 10_000
    assert "FAIL: at least one claim is broken" in read.text


def test_surrogates_and_nul_show_as_escapes():
    from audit.api.reading import _safe

    assert _safe(HOSTILE).isprintable()
    assert _safe("\x00\ud800<") == "\\x00\\ud800&lt;"


@pytest.mark.medium
def test_queries_are_data_frames(tmp_path):
    run = audit.open_store(made_store(tmp_path)).run()
    for given, name in ((run.acceptance(), "acceptance"), (run.positions(), "positions"), (run.lengths(), "steps")):
        rows = run.query(name)
        assert (len(given), list(given.columns)) == (len(rows), list(rows[0]))
        assert given["arm"].tolist() == [row["arm"] for row in rows]
    assert "draft_acceptance_rate" in run.acceptance().columns


@pytest.mark.medium
def test_without_pandas_one_line_says_what_to_install(tmp_path, monkeypatch):
    run = audit.open_store(made_store(tmp_path)).run()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pandas is not installed; install it: pip install 'specaudit\[notebook\]'"):
        run.acceptance()
    assert run._repr_html_()


@pytest.mark.slow
def test_a_real_notebook_shows_the_table_and_the_frame(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    url = made_store(tmp_path)
    cells = [f"import audit\nrun = audit.open_store({url!r}).run()\nrun", "run.acceptance()"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=120).execute()
    table, frame = (cell.outputs[0].data["text/html"] for cell in book.cells)
    assert "<td" in table
    assert "draft_acceptance_rate" in frame
