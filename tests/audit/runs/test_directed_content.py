"""Directed requests of arms with grammars, tools, filters and minimum lengths, on the bundled pair."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from audit.api.running import Quiet
from audit.evidence.records import is_directed
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.runs.situations.generators import ProposedCase
from audit.runs.situations.rounds import _within
from audit.store import Store
from audit.suite.loader import load_suite
from audit.suite.spec import Case, DirectedSampling
from engine.core.types import SamplingParams

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
        outcome = run(prepare(suite_of(folder, *arguments, **changes)), store, Quiet())
        short = {item.situation for item in store.coverage(outcome.run) if item.short}
        directed = [one for one in store.load_arm(outcome.run, "greedy").requests if is_directed(one.key)]
        return outcome.exit_code, short, directed


CONTENTS = {
    "grammar": ({"rows": {"structured": range(0, 120, 12)}}, {"end_in_draft"}),
    "tools": (
        {"rows": {"tool_calls": range(8)}, "proposer": DRAFT, "record": "topk", "tool_choice": "auto"},
        {"tool_call_at_step_end"},
    ),
    "demanded calls": (
        {"rows": {"tool_choices": range(0, 60, 8)}, "proposer": DRAFT, "record": "topk", "tool_choice": "required"},
        {"rows_finish_together"},
    ),
    "filters": (
        {"rows": {"chat": range(8), "safety": range(0, 48, 12)}, "filters": FILTERS},
        {"filter_at_length", "end_in_draft"},
    ),
    "drafts that are seldom kept": (
        {"rows": {"chat": range(24, 32)}, "proposer": DRAFT | {"gamma": 5}, "sampling": {"max_new_tokens": 32}},
        {"after_kept_whole", "end_at_bonus"},
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


def test_a_greedy_draft_is_kept_whole_again_at_its_place(tmp_path):
    changes, _ = CONTENTS["drafts that are seldom kept"]
    _, _, directed = ran(tmp_path / "on", "on", **changes)
    kept = [request for request in directed if "/keep/" in request.case_id]
    assert kept
    for request in kept:
        trace = request.trace
        assert trace.n_emitted[0] == trace.n_drafted[0] + 1 == 6
        assert trace.n_drafted[1] > 0


def test_a_prompt_that_repeats_beyond_the_context_is_left_out(tmp_path):
    """The bundled target reads 1024 positions; the prompt, its answer and the prompt again are more."""
    folder = tmp_path / "long"
    folder.mkdir()
    suite_of(folder, "on", {"chat": range(2)})
    (folder / "prompts.jsonl").write_text(json.dumps({"prompt": "the sea and the sun " * 110}) + "\n")
    with Store.open(str(folder / "audit.db"), create=True) as store:
        outcome = run(prepare(load_suite(folder / "suite.yaml")), store, Quiet())
    assert outcome.exit_code in (0, 3)


def test_the_least_length_stays_within_the_greatest():
    sampling = SamplingParams(max_new_tokens=40, min_tokens=12)
    assert DirectedSampling(max_new_tokens=3).applied(sampling).min_tokens == 3
    assert DirectedSampling(min_tokens=7, max_new_tokens=9).applied(sampling).min_tokens == 7
    assert DirectedSampling().applied(sampling) == sampling


def test_a_request_that_may_be_cut_fits_into_less_room():
    case = Case("a", "w", "d", direction=DirectedSampling(max_new_tokens=20))
    kept = ProposedCase(case, 20)
    assert _within([kept], 19) == []
    (cut,) = _within([replace(kept, least=6)], 9)
    assert cut.direction == DirectedSampling(max_new_tokens=9)
    assert _within([replace(kept, least=6)], 5) == []
