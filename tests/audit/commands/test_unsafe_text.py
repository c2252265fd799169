"""Text from models, suites and people: no escape sequence reaches a terminal, no formula a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.store import NewCheck, NewRequest, RunStatus, Store
from audit.text.unsafe import inert, visible, visible_lines
from tests.audit.invoke import invoke
from tests.audit.store.build import COUNTS, generation, start

HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\x9b2J\u202eevil\u200b\ud7ff\n=HYPERLINK(1)"
FORMULAS = ("=1+1", " =1", "\n=1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\uff1d1")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Two runs with hostile text in every column that takes text from outside."""
    made = str(tmp_path_factory.mktemp("hostile") / "audit.db")
    finding = Finding(f"spec/{HOSTILE}#0", 0, HOSTILE)
    bad = CheckResult(Verdict.FAULT, HOSTILE, 1, findings=(finding,), details={HOSTILE: HOSTILE})
    with Store.open(made, create=True) as store:
        for seed in (1, 2):
            run = store.begin_run(replace(start(), suite_name=HOSTILE, actor=HOSTILE, code_commit=HOSTILE))
            for arm in ("base", "spec"):
                store.add_requests(
                    run, [NewRequest(arm, HOSTILE, HOSTILE, 0, generation(((2, 1),), seed=seed, text=HOSTILE))]
                )
            store.add_check(run, NewCheck("spec", "replay", "replay", Level.L4, bad, COUNTS))
            store.set_status(run, RunStatus.RUNNING, HOSTILE)
            store.finish_run(run, RunStatus.FINISHED, 1)
    return made


def printed(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code in (0, 1, 2, 3), result.exception
    return result.stdout + result.stderr


COMMANDS = (
    ("list",),
    ("show",),
    ("show", "latest", f"spec/{HOSTILE}#0"),
    ("show", "latest", "nobody#0"),
    ("diff", "latest", "latest"),
    ("coverage",),
    ("query", "checks"),
    ("query", "slow"),
    ("query", "--sql", "SELECT * FROM request"),
    ("query", "--sql", "SELECT * FROM request", "--format", "csv"),
    ("query", "--sql", "SELECT * FROM check_result", "--format", "jsonl"),
    ("query", "--sql", f"SELECT '{HOSTILE}'"),
    ("db", "check"),
    ("judge",),
    ("gate", "latest", "--policy", "standard", "--no-subject"),
    ("gate", "latest", "--policy", HOSTILE, "--no-subject"),
    ("validate", HOSTILE),
    ("run", HOSTILE),
)


@pytest.mark.medium
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_control_character_reaches_the_terminal(url, command):
    store = () if command[0] in ("validate", "run") else ("--store", url)
    output = printed(*command, *store)
    assert output.strip()
    assert not {each for each in output.replace("\n", "") if not each.isprintable()}


def test_two_runs_that_differ_are_compared_in_visible_text(url):
    runs = [row["ulid"] for row in json.loads(invoke("list", "--json", "--store", url).stdout)]
    output = printed("diff", *runs, "--store", url)
    assert output.replace("\n", "").isprintable()
    assert "\\x1b[31mred" in output


@pytest.mark.parametrize("text", FORMULAS)
def test_no_formula_reaches_a_spreadsheet(url, text):
    query = ("query", "--sql", "SELECT :text AS found", "--param", f"text={text}", "--format", "csv", "--store", url)
    rows = list(csv.reader(io.StringIO(invoke(*query).stdout, newline="")))
    assert rows[1] == [f"'{text}"]


def test_raw_cells_are_as_stored_in_a_pipe_or_a_file_and_never_on_a_terminal(url, tmp_path, monkeypatch):
    query = ("query", "--sql", "SELECT suite_name AS found FROM run LIMIT 1", "--store", url)
    stored = f'found\n"{HOSTILE}"\n'
    assert invoke(*query, "--format", "csv", "--raw").stdout_bytes.decode() == stored
    assert invoke(*query, "--format", "csv", "--raw", "--out", str(tmp_path / "raw.csv")).exit_code == 0
    assert (tmp_path / "raw.csv").read_bytes().decode() == stored
    assert "--raw is for --format csv" in invoke(*query, "--raw").stderr
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: True, raising=False)
    refused = invoke(*query, "--format", "csv", "--raw")
    assert (refused.exit_code, refused.stdout) == (2, "")


@pytest.mark.parametrize("arguments", [(f"--{HOSTILE}",), (HOSTILE,), ("show", f"--{HOSTILE}"), ("list", HOSTILE)])
def test_click_quotes_arguments_visibly(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "\\x1b[31mred" in result.stderr
    assert not {each for each in result.stderr.replace("\n", "") if not each.isprintable()}


def test_what_a_spreadsheet_skips_does_not_hide_a_formula():
    assert inert("\t=1") == "\\t=1"
    assert inert("\r=1") == "\\r=1"


@pytest.mark.parametrize("value", ["-1.5", "+3", "-2e-7", "plain", "", -4, 2.5, None, b"=1"])
def test_numbers_and_plain_text_stay_as_they_are(value):
    assert inert(value) == value


def test_every_hidden_character_shows_as_its_escape():
    assert visible("a\x1bb\u202ec\u200bd\ne") == "a\\x1bb\\u202ec\\u200bd\\ne"
    assert visible_lines("a\x07\nb") == "a\\x07\nb"
    assert visible("a\u3164b\ufe0fc\U000e0101") == "a\\u3164b\\ufe0fc\\U000e0101"
    assert visible("\ud800\x00") == "\\ud800\\x00"
    assert visible("Grüße, 日本 🙂") == "Grüße, 日本 🙂"
