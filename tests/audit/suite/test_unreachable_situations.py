"""Situations that a suite cannot reach: each is named when its key excludes it, and not otherwise."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.suite.loader import load_suite
from audit.suite.unreachable_situations import unreachable
from audit.text.documents import packaged_file
from tests.audit.invoke import invoke

ARM = {"proposer": {"kind": "draft_model", "model": "draft", "gamma": 3}, "verifier": "chain"}
SUITE = {
    "version": 1,
    "name": "reach",
    "backend": "scripted",
    "models": {"target": "scripted:1", "draft": "scripted:2"},
    "workloads": [{"name": "words", "prompts": "words.jsonl"}],
    "sampling": {"max_new_tokens": 16, "temperature": 1},
    "arms": [{"name": "one", **ARM}, {"name": "two", **ARM}],
}
LENGTHS = [130, *range(1, 12)]


def write(folder, lengths=LENGTHS, **changes):
    rows = ({"id": f"w{i}", "prompt": "a" * length} for i, length in enumerate(lengths))
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "suite.yaml"
    with path.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump({**SUITE, **changes}, stream)
    return str(path)


def found(folder, **changes):
    by_key = {}
    for each in unreachable(load_suite(write(folder, **changes))):
        by_key.setdefault(each.key, set()).update(each.situations)
    return by_key


def test_a_suite_that_reaches_everything_warns_of_nothing(tmp_path):
    assert found(tmp_path) == {}
    assert unreachable(load_suite(packaged_file("quickstart.yaml"))) == ()


@pytest.mark.parametrize(
    ("changes", "key", "situations"),
    [
        ({"batch_size": 12}, "batch_size", {"row_reused"}),
        ({"mixed": False}, "mixed", {"mixed_parameters"}),
        ({"lengths": [130] * 12}, "workloads", {"mixed_lengths"}),
        ({"lengths": LENGTHS[1:] * 2}, "workloads", {"long_prompt", "context_medium"}),
        ({"lengths": [*LENGTHS[1:] * 2, 49]}, "workloads", {"long_prompt"}),
        ({"sampling": {"max_new_tokens": 3}}, "sampling.max_new_tokens", {"after_kept_whole"}),
    ],
)
def test_one_key_excludes_a_situation(tmp_path, changes, key, situations):
    assert found(tmp_path, **changes) == {key: situations}


def test_a_waived_situation_is_no_warning(tmp_path):
    short = {"lengths": LENGTHS[1:] * 2}
    assert found(tmp_path, **short, coverage={"waive": ["long_prompt"]}) == {"workloads": {"context_medium"}}
    assert found(tmp_path, **short, coverage={"least": 0}) == {}
    arms = [{**each, "coverage": {"waive": ["long_prompt"]}} for each in SUITE["arms"]]
    assert found(tmp_path, **short, arms=arms) == {"workloads": {"context_medium"}}
    assert "long_prompt" in found(tmp_path, **short, arms=[arms[0], SUITE["arms"][1]])["workloads"]


def test_one_row_has_no_neighbour(tmp_path):
    assert found(tmp_path, batch_size=1)["batch_size"] == {
        *("neighbour_joins", "rows_finish_together", "mixed_parameters", "mixed_lengths", "mixed_drafts")
    }


def test_one_token_leaves_no_room_for_a_draft(tmp_path):
    assert "kept_whole" in found(tmp_path, sampling={"max_new_tokens": 1})["sampling.max_new_tokens"]
    arms = [{"name": "one", **ARM, "sampling": {"max_new_tokens": 1}}, SUITE["arms"][1]]
    (warning,) = unreachable(load_suite(write(tmp_path, arms=arms)))
    assert warning.problem == "1 leaves arm one no room for a draft"


def test_short_contexts_cross_no_block(tmp_path):
    short = {"lengths": list(range(1, 13)), "sampling": {"max_new_tokens": 4, "temperature": 1}}
    assert {"block_border"} in [set(each.situations) for each in unreachable(load_suite(write(tmp_path, **short)))]
    short["sampling"]["max_new_tokens"] = 5
    assert found(tmp_path, **short) == {"workloads": {"long_prompt", "context_medium"}}


def test_neighbours_that_an_arm_names_are_enough(tmp_path):
    arms = [{**each, "beside": {"temperature": 0.5}} for each in SUITE["arms"]]
    assert found(tmp_path, mixed=False, arms=arms) == {}


def test_batches_of_other_engines_are_their_own(tmp_path):
    suite = load_suite(write(tmp_path, batch_size=1))
    keys = {each.key for each in unreachable(replace(suite, backend="vllm"))}
    assert "batch_size" not in keys


def test_every_named_situation_is_in_the_catalogue(tmp_path):
    changes = {"lengths": [3] * 2, "mixed": False, "sampling": {"max_new_tokens": 1}}
    warned = [*unreachable(load_suite(write(tmp_path, **changes, batch_size=1)))]
    warned += unreachable(load_suite(write(tmp_path, **changes)))
    named = {name for each in warned for name in each.situations}
    assert len(named) > 10
    assert named <= set(CATALOGUE)
    page = (Path(__file__).parents[3] / "docs" / "suite.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([^|]*) \|", page, re.MULTILINE)
    assert {key for key, _ in rows} == {each.key for each in warned}
    assert {name for _, names in rows for name in re.findall("`(.*?)`", names)} == named | {"after_kept_whole"}


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_commands_warn_on_stderr_and_keep_their_exit_code(tmp_path, command):
    path, store = write(tmp_path), () if command == "validate" else ("--store", str(tmp_path / "none.db"))
    silent = invoke(command, path, *store)
    assert silent.stderr == ""
    warned = invoke(command, write(tmp_path, batch_size=12), *store)
    assert warned.exit_code == silent.exit_code
    assert warned.stderr.splitlines() == [
        f"{path}: warning: batch_size: 12 rows are enough for all requests of every arm: row_reused does not occur; "
        "lower it, or add prompts or samples"
    ]
