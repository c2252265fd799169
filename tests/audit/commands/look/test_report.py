"""`audit report`: one file, never replaced unasked, and the same facts as Markdown."""

from __future__ import annotations

import stat
from pathlib import Path

import html5lib
import pytest
from markdown_it import MarkdownIt

from audit.report.html import render
from audit.report.html.markdown import escaped, markdown_of
from tests.audit.invoke import invoke
from tests.audit.report.html.runs import HOSTILE, StoredRuns, stored_runs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StoredRuns:
    return stored_runs(f"sqlite:///{tmp_path_factory.mktemp('command') / 'audit.db'}")


@pytest.mark.medium
def test_the_page_goes_to_a_file_that_is_not_replaced_unasked(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = invoke("report", made.finished, "--store", made.url)
    assert (first.exit_code, first.stdout) == (0, f"{made.finished}.html\n")
    page = Path(f"{made.finished}.html").read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>")
    again = invoke("report", made.finished, "--store", made.url)
    assert again.exit_code == 2
    assert "the file exists" in again.stderr
    assert invoke("report", made.finished, "--store", made.url, "--force").exit_code == 0
    assert Path(f"{made.finished}.html").read_text("utf-8") == page


def test_bad_input_is_one_line(made, tmp_path):
    for arguments in (
        ("nothing",),
        ("latest", "--html", str(tmp_path / "missing" / "a.html")),
        ("latest", "--html", str(tmp_path)),
        ("latest", "--markdown", "--html", "a.html"),
    ):
        result = invoke("report", *arguments, "--store", made.url)
        assert result.exit_code == 2, arguments
        assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_markdown_has_the_facts_of_the_page_and_nothing_alive(made):
    text = invoke("report", made.hostile, "--markdown", "--store", made.url).stdout
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text)
    tags = {str(node.tag).rpartition("}")[2] for node in html5lib.parse(html).iter()}
    known = set("html head body h1 h2 h3 h4 p ul li strong table thead tbody tr th td pre code".split())
    assert tags <= known
    assert "\x1b" not in text
    assert "\u202e" not in text
    plain = invoke("report", made.finished, "--markdown", "--store", made.url).stdout
    assert "| spec | replay | certified | L4 | 12 | all equal |" in plain
    assert "## Verdict board" in plain


def test_markdown_escapes_at_line_starts_and_in_cells():
    assert escaped("1. a") == "1\\. a"
    assert escaped("# a | b_c _d_ 0.5") == "\\# a \\| b_c \\_d\\_ 0.5"
    assert markdown_of(f"<p>{HOSTILE.replace('<', '&lt;')}</p>").count("<") == 0


@pytest.mark.medium
def test_a_pdf_needs_a_browser(made, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = invoke("report", "--pdf", str(tmp_path / "a.pdf"), "--store", made.url)
    assert missing.exit_code == 2
    assert "needs Chromium or Chrome" in missing.stderr
    browser = tmp_path / "chromium"
    browser.write_text('#!/bin/sh\nfor a in "$@"; do case $a in --print-to-pdf=*) echo %PDF > "${a#*=}";; esac; done\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    assert render.pdf_of("<p>a</p>") == b"%PDF\n"
    assert invoke("report", "--pdf", str(tmp_path / "a.pdf"), "--store", made.url).exit_code == 0
    assert (tmp_path / "a.pdf").read_bytes() == b"%PDF\n"
    browser.write_text("#!/bin/sh\nexit 3\n")
    silent = invoke("report", "--pdf", str(tmp_path / "b.pdf"), "--store", made.url)
    assert silent.exit_code == 2
    assert "exit code 3" in silent.stderr
