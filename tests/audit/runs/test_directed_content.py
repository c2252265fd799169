"""Directed requests of arms with grammars, tools, filters and minimum lengths, on the bundled pair."""

from pathlib import Path

import pytest
import yaml

from audit.evidence.records import is_directed
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from audit.suite.loader import load_suite
from tests.support.observers import Silent

pytestmark = pytest.mark.medium
PROMPTS = Path("suites/prompts")
FILTERS = [
    {"kind": "patterns", "action": "redact", "rules": str(Path("suites/filters/safety.json").resolve())},
    {"kind": "patterns", "action": "stop", "rules": str(Path("suites/filters/endings.json").resolve())},
]
NGRAM = {"kind": "ngram", "gamma": 4}
DRAFT = {"kind": "draft_model", "model": "draft", "gamma": 4}


def suite_of(folder, directed, rows, proposer=NGRAM, **changes):
    """A suite of a few rows of packaged prompts, and one greedy arm."""
    lines = {name: (PROMPTS / f"{name}.jsonl").read_text().splitlines() for name in rows}
    picked = [lines[name][index] for name, places in rows.items() for index in places]
    (folder / "prompts.jsonl").write_text("\n".join(picked))
    suite = {
        "version": 1,
        "name": "content",
        "seed": 5,
        "batch_size": 2,
        "models": {"target": "bundled:target", "draft": "bundled:draft"},
        "workloads": [{"name": "own", "prompts": "prompts.jsonl"}],
        "sampling": {"max_new_tokens": 64},
        "coverage": {"directed": directed},
        "arms": [{"name": "greedy", "proposer": proposer, "verifier": "greedy"}],
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump({**suite, **changes}))
    return load_suite(folder / "suite.yaml")


def ran(folder, *arguments, **changes):
    """The exit code of a run, the situations that its arm is short of, and its directed requests."""
    folder.mkdir()
    with Store.open(str(folder / "audit.db"), create=True) as store:
        outcome = run(prepare(suite_of(folder, *arguments, **changes)), store, Silent())
        short = {item.situation for item in store.coverage(outcome.run) if item.short}
        directed = [one for one in store.load_arm(outcome.run, "greedy").requests if is_directed(one.key)]
        return outcome.exit_code, short, directed


CONTENTS = {
    "grammar": ({"rows": {"structured": range(0, 120, 12)}}, {"end_in_draft"}),
    "tools": (
        {"rows": {"tool_calls": range(8)}, "proposer": DRAFT, "record": "topk", "tool_choice": "auto"},
        {"tool_call_at_step_end"},
    ),
    "filters": (
        {"rows": {"chat": range(8), "safety": range(0, 48, 12)}, "filters": FILTERS},
        {"filter_at_length", "end_in_draft"},
    ),
    "minimum": (
        {"rows": {"chat": range(8)}, "sampling": {"max_new_tokens": 64, "min_tokens": 12}},
        {"min_tokens_in_draft"},
    ),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_what_the_few_prompts_lack_comes_about(tmp_path, content):
    changes, situations = CONTENTS[content]
    _, lacking, none = ran(tmp_path / "off", "off", **changes)
    code, left, directed = ran(tmp_path / "on", "on", **changes)
    assert situations <= lacking
    assert (left, none, code) == (set(), [], 0)
    assert directed
