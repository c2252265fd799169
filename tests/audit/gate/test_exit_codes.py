"""The exit code of `audit gate` on every path, and that no exception on the way allows."""

from __future__ import annotations

import sqlite3

import pytest

from audit.errors import CannotDecide, UserError
from audit.evidence.verdicts import Verdict
from audit.gate import judge as judging
from tests.audit.gate.runs import PASSING, SMALL_POLICY, stored_run
from tests.audit.invoke import invoke


@pytest.fixture
def asked(tmp_path):
    """Asks about a run with these verdicts: made up, so they are trusted unless the caller says otherwise."""

    def ask(*more: str, verdicts=PASSING, run: str = "latest", trusting: bool = True, accepted: bool = True):
        text = SMALL_POLICY if accepted else SMALL_POLICY.replace(", stored_verdicts: true", "")
        (tmp_path / "policy.yaml").write_text(text)
        url = stored_run(tmp_path, verdicts)
        policy = ("--policy", str(tmp_path / "policy.yaml"))
        return invoke("gate", run, *policy, "--store", url, *(["--trust-verdicts"] if trusting else []), *more)

    return ask


FAULT, LESS = {**PASSING, "law": Verdict.FAULT}, {"replay": Verdict.CERTIFIED}
PATHS = {
    "allow": ((), {}, 0),
    "block": ((), {"verdicts": FAULT}, 1),
    "cannot decide": ((), {"verdicts": LESS}, 3),
    "block, as a warning": (("--warn-only",), {"verdicts": FAULT}, 0),
    "cannot decide, as a warning": (("--warn-only",), {"verdicts": LESS}, 0),
    "no such run": ((), {"run": "01ZZZZ"}, 3),
    "another policy": ((f"--policy-digest=sha256:{'0' * 64}",), {}, 3),
    "the record does not give the verdicts": ((), {"trusting": False}, 1),
    "verdicts as they are stored, under a policy that accepts none": ((), {"accepted": False}, 3),
    "no digest": (("--policy-digest=x",), {}, 2),
    "no subject": (("--subject=draft",), {}, 2),
    "no deployment": (("--serves=tea",), {}, 2),
    "no format": (("--format=xml",), {}, 2),
    "no checkpoint": (("--checkpoint=none",), {}, 2),
    "no proof": (("--proof=none",), {}, 2),
    "no bundle": ((), {"run": "none.zip"}, 2),
    "no folder for a summary": (("--summary-file=none/summary.md",), {}, 2),
    "no option": (("--allow",), {}, 2),
}


@pytest.mark.medium
@pytest.mark.parametrize("path", PATHS)
def test_each_path_has_its_exit_code(path, asked):
    more, how, code = PATHS[path]
    done = asked(*more, **how)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output


@pytest.mark.medium
@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("x"), KeyError("x"), TypeError(), ZeroDivisionError(), RecursionError(), MemoryError()),
        *(AssertionError(), OSError("disk"), sqlite3.OperationalError("x"), NotImplementedError(), StopIteration()),
        *(UnicodeDecodeError("utf-8", b"", 0, 1, "x"), UserError("x"), CannotDecide("x")),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("place", ["decide", "read_facts"])
def test_no_exception_allows(place, error, asked, monkeypatch):
    def raising(*arguments, **options):
        raise error

    monkeypatch.setattr(judging, place, raising)
    assert asked().exit_code == 3


@pytest.mark.medium
def test_an_error_of_the_gate_is_no_warning(asked, monkeypatch):
    def raising(*arguments, **options):
        raise ValueError("deep inside")

    monkeypatch.setattr(judging, "decide", raising)
    done = asked("--warn-only")
    assert done.exit_code == 3
    assert "the gate failed: ValueError: deep inside" in done.stdout


@pytest.mark.medium
def test_a_summary_is_appended(asked, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    asked(f"--summary-file={summary}")
    assert summary.read_text().startswith("before\n### audit gate: allow\n")
