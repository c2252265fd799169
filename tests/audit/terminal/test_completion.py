"""Completion as the shells ask for it: by environment variables, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from audit.store import Store
from audit.store.asking.queries import NAMED
from tests.audit.store.build import made_store

PROGRAM = f"""#!{sys.executable}
import sys
sys.argv[0] = "audit"
from audit.cli import main
main()
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """`audit` on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "audit").write_text(PROGRAM)
    (folder / "audit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def asked(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What bash's completion asks of the program for the end of a line."""
    words = line.split(" ")
    given = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_AUDIT_COMPLETE": "bash_complete"} | variables
    return subprocess.run(["audit"], env=os.environ | given, capture_output=True, text=True, check=False)


def offered(line: str, **variables: str) -> list[str]:
    done = asked(line, **variables)
    assert done.stderr == ""
    return [each.split(",", 1)[1] for each in done.stdout.splitlines() if each.startswith("plain,")]


@pytest.mark.medium
@pytest.mark.usefixtures("program")
def test_runs_arms_suites_and_queries_are_offered(tmp_path, monkeypatch):
    url = made_store(tmp_path)
    with Store.open(url, create=False) as store:
        (run,) = (each.ulid for each in store.list_runs(9))
    monkeypatch.setenv("AUDIT_STORE", url)
    assert offered("audit show ") == ["latest", run]
    assert offered(f"audit diff latest {run[:8]}") == [run]
    assert offered("audit judge x'; DROP TABLE run; --") == []
    assert set(offered("audit sweep quickstart --arm ")) >= {"greedy"}
    assert offered("audit query ") == list(NAMED)
    assert offered("audit run quick") == ["quickstart"]
    assert offered("audit help checks/law") == ["checks/law"]
    assert offered("audit help gat") == ["gate"]


@pytest.mark.medium
@pytest.mark.usefixtures("program")
def test_a_named_store_is_asked_and_zsh_and_fish_show_the_suite(tmp_path):
    url = made_store(tmp_path)
    assert len(offered(f"audit gate --store {url} 0")) == 1
    zsh = asked(f"audit show --store {url} 0", _AUDIT_COMPLETE="zsh_complete").stdout.splitlines()
    assert zsh[0] == "plain"
    assert zsh[2].startswith("smoke, 20")
    fish = asked(f"audit show --store {url} 0", _AUDIT_COMPLETE="fish_complete", COMP_CWORD="0").stdout
    assert "smoke, 20" in fish


@pytest.mark.medium
@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("content", [None, b"no database", b""], ids=["missing", "foreign", "empty"])
def test_a_store_that_cannot_be_asked_is_left_alone_without_a_word(tmp_path, content):
    path = tmp_path / "there" / "audit.db"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    assert offered("audit show 0", AUDIT_STORE=str(path)) == []
    assert path.parent.exists() is (content is not None)
    assert content is None or (path.read_bytes() == content and len(list(path.parent.iterdir())) == 1)


@pytest.mark.medium
@pytest.mark.usefixtures("program")
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash_itself_completes_runs_and_suites(tmp_path):
    url = made_store(tmp_path)
    script = """
eval "$(_AUDIT_COMPLETE=bash_source audit)"
compopt() { :; }
COMP_WORDS=(audit show 0); COMP_CWORD=2; COMPREPLY=(); _audit_completion audit show 0; echo "${COMPREPLY[@]}"
COMP_WORDS=(audit run medi); COMP_CWORD=2; COMPREPLY=(); _audit_completion audit run medi; echo "${COMPREPLY[@]}"
"""
    done = subprocess.run(["bash", "-c", script], env=os.environ | {"AUDIT_STORE": url}, capture_output=True, text=True)
    assert done.stderr == ""
    run, suite = done.stdout.split()
    with Store.open(url, create=False) as store:
        assert run == store.resolve("latest")
    assert suite == "medium"
