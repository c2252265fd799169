"""Directed requests beside plain arms of an earlier run, and near the end of a model's context."""

import json

import pytest

from audit.runs.prepare import prepare
from audit.runs.reused_baseline import reused_run
from audit.runs.runner import run
from audit.store import Store
from audit.suite.loader import load_suite
from tests.audit.runs.test_directed import suite_file
from tests.support.observers import Silent

pytestmark = pytest.mark.medium


def test_with_an_earlier_baseline_none_are_added(tmp_path):
    suite = load_suite(suite_file(tmp_path))
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        first = run(prepare(suite), store, Silent()).run
        second = run(prepare(suite, reused_run(store, first)), store, Silent()).run
        arms = {name: store.load_arm(name, "greedy").requests for name in (first, second)}
        directed = {name: sum(request.directed for request in requests) for name, requests in arms.items()}
    assert directed[first] > 0 == directed[second]


def test_a_prompt_that_was_made_too_long_is_left_out(tmp_path):
    """The scripted models have no limit of context, the bundled ones have 512 positions."""
    path = suite_file(tmp_path)
    text = path.read_text().replace("backend: scripted\n", "batch_size: 2\n").replace("batch_size: 3\n", "")
    text = text.replace('"scripted:1"', "bundled:target").replace('"scripted:2"', "bundled:draft")
    path.write_text(text.replace("stop_token_ids: [25]", "stop_token_ids: []"))
    rows = [{"id": f"p{index}", "prompt": "the sea and the sun " * 45} for index in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        name = run(prepare(load_suite(path)), store, Silent()).run
        requests = list(store.load_arm(name, "greedy").requests)
    assert any(request.directed for request in requests)
    assert all(len(request.trace.header.prompt) + 40 <= 512 for request in requests)
