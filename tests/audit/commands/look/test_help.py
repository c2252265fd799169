"""Every name that a suite, a verdict or a message uses is explained in the terminal."""

import os
import pty
import subprocess
import sys

import pytest

from audit.checks import REGISTRY as CHECKS
from audit.commands.look.help import explained, page_files
from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.verdicts import Verdict
from engine.backends import REGISTRY as BACKENDS
from engine.proposers import REGISTRY as PROPOSERS
from engine.verify import REGISTRY as VERIFIERS
from tests.audit.invoke import invoke


@pytest.mark.parametrize("names", [CHECKS, CATALOGUE, PROPOSERS, VERIFIERS, BACKENDS, [str(word) for word in Verdict]])
def test_every_name_has_its_page_or_section(names):
    pages = page_files()
    for name in names:
        assert explained(pages, name).startswith("#"), name


def test_a_command_is_explained_by_its_own_help():
    for name in ("gate", "import", "db"):
        assert invoke("help", name).stdout == invoke(name, "--help").stdout
    assert "Explain a command" in invoke("--help").stdout


def test_the_pages_are_listed_without_the_notes_on_design():
    names = invoke("help").stdout.splitlines()
    assert {"checks/law", "verdicts", "situations/batch", "how-to/first-audit"} <= set(names)
    assert not [name for name in names if name.startswith("design/")]
    assert invoke("help", "checks/law").stdout == invoke("help", "law").stdout


def test_a_section_ends_where_the_next_begins():
    text = invoke("help", "cancelled_neighbour").stdout
    assert text.startswith("## cancelled_neighbour\n")
    assert "(from situations/batch)" in text
    assert text.count("\n## ") == 0


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("acceptanse", "near: acceptance"),
        ("undrafted bytes", "near: none; pages that mention it: none; audit help lists all"),
        ("index", "index names"),
        ("\x1b[2J", r"no page and no heading is named '\x1b[2J'"),
        ("../README", "no page and no heading"),
        ("", "no page and no heading"),
    ],
)
def test_an_unknown_topic_is_one_line_with_the_nearest(topic, words):
    done = invoke("help", topic)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.medium
def test_a_terminal_gets_a_page_laid_out_and_by_screens():
    master, slave = pty.openpty()
    known = os.environ | {"PAGER": "cat", "TERM": "xterm", "COLUMNS": "60"}
    known.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "audit", "help", "law"], stdout=slave, stdin=slave, stderr=slave, env=known
    ) as child:
        os.close(slave)
        text = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            text += part
        assert child.wait() == 0
    os.close(master)
    shown = text.decode()
    assert "\x1b[1m" in shown
    assert "**Claim" not in shown
    assert "<!--" not in shown
