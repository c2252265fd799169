"""Commands on a real pseudo-terminal: colours, widths, Ctrl-C, and what a pipe gets instead."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.audit.store.build import made_store
from tests.support.terminal import ROOT, TerminalSession

pytestmark = pytest.mark.slow

SUITE = """
version: 1
name: words
backend: scripted
seed: 5
models: {target: 'scripted:1', draft: 'scripted:2'}
workloads: [{name: words, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 24, temperature: 1, ignore_eos: true}
samples: SAMPLES
arms:
  - {name: chain, proposer: {kind: draft_model, model: draft, gamma: 3}, verifier: chain, checks: [replay, accounting]}
"""
ESCAPE = re.compile(rb"\x1b")


@pytest.fixture
def suite(tmp_path):
    def write(samples: int) -> str:
        (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "abc"}\n{"id": "b", "prompt": "b"}\n')
        (tmp_path / "suite.yaml").write_text(SUITE.replace("SAMPLES", str(samples)))
        return str(tmp_path / "suite.yaml")

    return write


def options(folder) -> tuple[str, ...]:
    return ("--store", str(folder / "audit.db"), "--results", str(folder / "results.json"))


def plain(*arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "audit", *arguments]
    return subprocess.run(command, capture_output=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **env})


@pytest.mark.parametrize("width", [80, 200])
def test_a_run_shows_its_table_and_leaves_only_the_verdicts(suite, tmp_path, width):
    session = TerminalSession("run", suite(60), *options(tmp_path), width=width)
    table = session.until(lambda text: "tokens/s" in text and re.search(r"[1-9]\d*/120", text) is not None)
    assert max(map(len, table.splitlines())) <= width
    assert session.end() in (0, 3)
    text = session.text()
    assert "tokens/s" not in text
    assert "requests  tokens" in text
    assert "green" in session.colours("certified  L4")
    assert session.colours("PASS") <= {"green"}
    assert not session.screen.cursor.hidden


def test_ctrl_c_leaves_a_clean_terminal_and_a_run_to_resume(suite, tmp_path):
    session = TerminalSession("run", suite(3000), *options(tmp_path))
    session.until(lambda text: re.search(r"[1-9]\d*/6000", text) is not None)
    session.interrupt()
    assert session.end() == 3
    lines = session.text().splitlines()
    assert not session.screen.cursor.hidden
    assert not any("tokens/s" in line or "━" in line for line in lines)
    # the command stands on a line of its own; the terminal breaks it, and copies it whole
    assert lines[0].endswith("continue with:")
    assert lines[1].startswith("audit resume ")


def test_a_window_made_narrower_keeps_one_table(suite, tmp_path):
    session = TerminalSession("run", suite(3000), *options(tmp_path), width=200)
    session.until(lambda text: re.search(r"[1-9]\d*/6000", text) is not None)
    session.resize(80)
    for done in (40, 80):
        session.until(lambda text, done=done: int((re.findall(r"(\d+)/6000", text) or "0")[0]) > done)
    assert session.text().count("tokens/s") == 1
    assert max(map(len, session.text().splitlines())) <= 80
    session.interrupt()
    assert session.end() == 3


def test_a_pipe_and_a_dumb_terminal_get_lines_without_escapes(suite, tmp_path):
    path = suite(2)
    piped = plain("run", path, *options(tmp_path), FORCE_COLOR="1", TERM="xterm")
    assert piped.returncode in (0, 3)
    assert not ESCAPE.search(piped.stdout + piped.stderr)
    assert piped.stderr.startswith(b"running baseline/T=1: 4 requests\n")
    assert b"\nchecking chain\n" in piped.stderr
    dumb = TerminalSession("run", path, *options(tmp_path), env={"TERM": "dumb"})
    assert dumb.end() in (0, 3)
    assert not ESCAPE.search(dumb.raw)
    assert "running chain: 4 requests" in dumb.text()


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_show_breaks_no_word_and_colours_what_it_should(tmp_path, env):
    url = made_store(tmp_path)
    wide = plain("show", "--store", url).stdout.decode()
    for width in (80, 200):
        session = TerminalSession("show", "--store", url, width=width, env=env)
        assert session.end() == 0
        words = {word for word in wide.split() if len(word) <= width}
        assert words <= set(session.text().split())
        assert bool(ESCAPE.search(session.raw)) is not bool(env)
        assert session.colours("fault") == ({"default"} if env else {"red"})
