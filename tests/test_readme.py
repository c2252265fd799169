"""README: its transcripts are what the commands print now, and its commands work one after the other."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from audit.cli import main
from docs.tools import readme_transcripts as tool
from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = """\
version: 1
name: small
backend: scripted
models: {target: "scripted:1", draft: "scripted:2"}
workloads: [{name: chat, prompts: "suites:prompts/chat.jsonl", limit: 1}]
sampling: {max_new_tokens: 24, temperature: 0}
coverage: {least: 0}
arms:
  - {name: one, proposer: {kind: draft_model, model: draft, gamma: 2}, verifier: greedy, checks: [accounting]}
"""


def commands(text: str = README) -> list[str]:
    """The commands of the page's shell blocks, without their comments."""
    blocks = [body for language, body in FENCE.findall(text) if not language and not body.startswith("$ ")]
    lines = [line.partition("#")[0].strip() for body in blocks for line in body.splitlines()]
    return [line for line in lines if line.startswith("audit ")]


def test_the_page_is_short_and_shows_a_run():
    assert len(README.splitlines()) < 120
    assert list(tool.transcripts(README)) == list(tool.SHOWN)


def test_every_command_of_the_page_has_these_options():
    assert {line.split()[1] for line in commands()} >= {"validate", "plan", "run", "show", "gate", "attach", "verify"}
    # with the group's settings: a command keeps the help option of its first context, for every later test
    root = click.Context(main, info_name="audit", **main.context_settings)
    for line in commands():
        _, name, *words = shlex.split(line)
        command = main.get_command(root, name)
        assert command is not None, line
        command.make_context(name, words, parent=root)


@pytest.mark.medium
def test_a_report_is_attached_and_verified_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored_run(tmp_path)
    Path("report.json").write_text("{}")
    lines = [shlex.split(line)[1:] for line in commands() if line.split()[1] in ("attach", "verify")]
    assert [words[0] for words in lines] == ["attach", "verify"]
    for words in lines:
        done = invoke(*words)
        assert done.exit_code == 0, done.stdout + done.stderr


OUTPUT = """\
arm  kind       n
one  baseline   1
one  candidate  2  a long text
                   of two lines
two  candidate  3  another long text
                   of two lines

PASS: all
run 01M83B70SB53MT8PKXAMV4ER2Z
"""
EXCERPT = """\
arm  kind       n
...
two  candidate  3  another long text
                   of two lines

...
run 01M83B70SB53MT8PKXAMV4ER2Z
"""


@pytest.fixture
def page(tmp_path) -> Path:
    """A page with a transcript of a small suite, and the suite."""
    (tmp_path / "small.yaml").write_text(SMALL)
    made = tmp_path / "PAGE.md"
    made.write_text(f"# Page\n\n```\n$ audit run {tmp_path}/small.yaml\nold\n```\n\nEnd.\n")
    return made


def test_the_tool_writes_the_rows_that_are_asked_for(page, monkeypatch):
    (command,) = tool.transcripts(page.read_text())
    monkeypatch.setattr(tool, "output_of", lambda _: OUTPUT)
    monkeypatch.setattr(tool, "SHOWN", {command: ("arm ", "two ", "run ")})
    assert CliRunner().invoke(tool.write, [str(page)]).exit_code == 0
    assert page.read_text() == f"# Page\n\n```\n$ {command}\n{EXCERPT}```\n\nEnd.\n"


@pytest.mark.medium
def test_the_tool_runs_the_command_in_a_folder_of_its_own(page):
    (command,) = tool.transcripts(page.read_text())
    output = tool.output_of(command)
    lines = output.splitlines()
    assert lines[0].startswith("arm ")
    assert "PASS: every check that applies is certified" in lines
    assert lines[-1].startswith("run ")


def test_a_command_that_fails_is_no_transcript():
    with pytest.raises(RuntimeError, match="exit code 2"):
        tool.output_of("audit run nowhere.yaml")


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("two  candidate 102 a leak of 0.0118 run 01M83B70SB53MT8PKXAMV4ER2Z", []),
        ("two  candidate 100 a leak of 0.02 run 01M83B70SB53MT8PKXAMV4ER2Y", ["0.0119, now 0.02"]),
        ("two  baseline 100 a leak of 0.0119 run 01M83B70SB53MT8PKXAMV4ER2Y", ["candidate, now baseline"]),
        ("two  candidate 100 a leak of 0.0119", ["9 words, now 7"]),
    ],
)
def test_words_count_and_numbers_nearly(after, found):
    before = "two candidate 100 a leak of 0.0119 run 01M83B70SB53MT8PKXAMV4ER2Y"
    assert tool.differences(before, after) == found


@pytest.mark.slow
def test_the_transcripts_are_what_the_commands_print_now():
    fresh = tool.fresh_transcripts(README)
    found = {command: tool.differences(output, fresh[command]) for command, output in tool.transcripts(README).items()}
    assert set(map(tuple, found.values())) == {()}, "run: python -m docs.tools.readme_transcripts README.md"


@pytest.mark.slow
def test_the_page_works_from_the_suite_to_the_verified_report(tmp_path, monkeypatch):
    """Its suite, on the bundled pair under the page's names, and then every command in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUDIT_STORE", "audit.db")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("target", "draft"):
        os.symlink(ROOT / "engine" / "bundled" / name, f"my-{name}")
    (suite,) = (body for language, body in FENCE.findall(README) if language == "yaml" and "workloads:" in body)
    prompts = [(ROOT / f"suites/prompts/{name}.jsonl").read_text().splitlines()[:16] for name in ("tools", "code")]
    Path("my-prompts.jsonl").write_text("".join(f"{line}\n" for lines in prompts for line in lines))
    Path("report.json").write_text(json.dumps({"accuracy": 0.5}))
    for line in dict.fromkeys(commands()):
        _, *words = shlex.split(line)
        # nothing is faulty here, and the second run is the first with its paths spelled out
        if words[0] == "minimize" or (words[:1] == ["run"] and "--store" in words):
            continue
        done = invoke(*words)
        if words[0] == "init":
            # the page shows a suite like the one that this writes
            Path("my-suite.yaml").write_text(suite)
        assert done.exit_code in ((0, 3) if words[0] == "plan" else (0,)), f"{line}\n{done.stdout}{done.stderr}"
