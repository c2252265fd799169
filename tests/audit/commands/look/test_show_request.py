"""One generation, token by token: nothing is missing, nothing is invented, and hostile text stays text."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from importlib.resources import files

import pytest
from click.testing import CliRunner

from audit.api.running import Quiet
from audit.cli import main
from audit.report.requests.generation import REJECTED, UNREACHED, token_lines
from audit.report.requests.pieces import pieces_of
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from audit.suite.loader import load_suite
from audit.text import printer
from engine.core.types import Role
from tests.audit.invoke import invoke
from tests.audit.runs.round_suites import suite_file

KEPT = {role.name.lower() for role in Role}
BUNDLED = """
version: 1
name: shown
models: {{target: {target}, draft: 'bundled:draft'}}
workloads: [{{name: words, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 12, structured: {{choice: ["red apple", "red pear"]}}}}
arms:
  - name: tree
    proposer: {{kind: specinfer, model: draft, gamma: 4}}
    verifier: greedy
    checks: [replay]
"""


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted")
    url = str(folder / "audit.db")
    with Store.open(url, create=True) as store:
        name = run(prepare(load_suite(suite_file(folder, more=", replay: {}"))), store, Quiet()).run
    return url, name


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """A run with a grammar, whose target is a folder of its own."""
    folder = tmp_path_factory.mktemp("bundled")
    shutil.copytree(str(files("engine") / "bundled" / "target"), folder / "target")
    (folder / "suite.yaml").write_text(BUNDLED.format(target=folder / "target"))
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "Once upon a\\u001b[31m"}\n')
    url = str(folder / "audit.db")
    with Store.open(url, create=True) as store:
        run(prepare(load_suite(folder / "suite.yaml")), store, Quiet())
    return url, folder / "target"


def test_every_drafted_and_every_emitted_token_has_one_line(scripted):
    url, name = scripted
    with Store.open(url, create=False) as store:
        for request in store.load_arm(name, "chain").requests:
            trace, lines = request.trace, list(token_lines(request.trace))
            assert tuple(line.token for line in lines if line.role in KEPT) == request.tokens
            drafted = [line for line in lines if line.parent is not None]
            assert [line.token for line in drafted] == trace.node_token.tolist()
            roles = Counter(line.role for line in lines)
            assert roles["accepted"] == trace.n_accepted
            assert roles[REJECTED] == int((trace.examined_accepted == 0).sum())
            assert roles[UNREACHED] == len(drafted) - len(trace.examined_node)
            emitted = [line for line in lines if line.role in KEPT]
            assert [line.position for line in emitted] == [len(trace.header.prompt) + i for i in range(len(emitted))]
            assert [line.margin for line in emitted] == pytest.approx(trace.margin.tolist())


def test_the_page_of_a_request(scripted):
    url, _ = scripted
    result = invoke("show", "latest", "words/w1#0", "--store", url)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "request   chain/words/w1#0"
    assert lines[1] == "rule      chain, drafts by draft_model"
    assert lines[2] == "prompt    4 tokens: abab"
    (header,) = [line for line in lines if line.startswith("step ")]
    assert header.split() == "step position token text role after p q number margin".split()
    again = invoke("show", "latest", "chain/words/w1#0", "--store", url)
    assert again.stdout == result.stdout
    other = invoke("show", "latest", "baseline/T=1/words/w1#0", "--store", url)
    assert "drafts by none" in other.stdout or "drafts by plain" in other.stdout


def test_as_json_every_number_is_the_records(scripted):
    url, name = scripted
    shown = json.loads(invoke("show", "latest", "words/w2#0", "--json", "--store", url).stdout)
    with Store.open(url, create=False) as store:
        request = store.load_arm(name, "chain").by_key()["words/w2#0"]
    assert shown["text"] == request.text
    kept = [line for line in shown["tokens"] if line["role"] in KEPT]
    assert [line["p"] for line in kept if line["parent"] is None] == [
        p for p, role in zip(request.trace.p.tolist(), request.trace.role, strict=True) if role != Role.ACCEPTED
    ]


def test_colours_are_for_terminals_and_not_for_those_who_want_none(scripted, monkeypatch):
    url, _ = scripted
    arguments = ["show", "latest", "words/w1#0", "--store", url]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in CliRunner().invoke(main, arguments, color=True).stdout
    monkeypatch.setattr(printer, "live", lambda stream: True)
    assert "\x1b[32m" in CliRunner().invoke(main, arguments, color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in CliRunner().invoke(main, arguments, color=True).stdout


def test_masks_of_a_grammar_and_hostile_text(bundled):
    url, _ = bundled
    result = invoke("show", "latest", "words/a#0", "--store", url)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert r"Once upon a\x1b[31m" in result.stdout
    assert re.search(r"^step .* allowed$", result.stdout, re.MULTILINE)
    assert re.search(r"^grammar: llguidance [\d.]+, all tokens follow it$", result.stdout, re.MULTILINE)
    assert "'red'" in result.stdout


def test_texts_come_from_the_tokenizer_of_the_run_or_not_at_all(bundled):
    url, target = bundled
    with Store.open(url, create=False) as store:
        stored = store.load_run(store.resolve("latest"))
    assert pieces_of(stored).text(0) == "<|end|>"
    path = target / "tokenizer.json"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\n")
    changed = invoke("show", "latest", "words/a#0", "--store", url)
    assert f"no texts  the tokenizer of {target} has changed since the run" in changed.stdout
    path.unlink()
    assert pieces_of(stored).why == f"{target} has no tokenizer.json on this machine"
    path.write_bytes(whole)


def test_an_unknown_request_is_one_line_with_an_example(scripted):
    url, name = scripted
    result = invoke("show", "latest", "nonesuch#0", "--store", url)
    assert (result.exit_code, result.stdout) == (2, "")
    example = "write one as findings do, such as chain/words/w0#0"
    assert result.stderr == f"audit: run {name} has no request 'nonesuch#0'; {example}\n"
