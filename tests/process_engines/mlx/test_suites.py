"""The packaged suites on the real engine, and faults that are planted in it."""

import re

import pytest
import yaml

from tests.support.engine_suites import ROOT, silent, uncertified, verdicts

from .packaged import judged, with_python
from .planted import LEAK, STALE_CACHE, planted

pytestmark = pytest.mark.mlx
UNREACHED = ("nothing_drafted", "end_in_draft", "end_at_last_draft", "end_at_bonus", "long_prompt", "shared_prefix")
"""Situations that eight short prompts do not reach."""


def without_trimmed(found):
    """The uncertified verdicts without a defect of the engine: a text that begins with a space loses it.

    Its detokenizer drops the space for every answer, so a continuation of the prompt lacks it.
    """
    trimmed = re.compile(r"the text has '(.*)' at character 0, its tokens decode to ' \1'")
    uncertain = uncertified(found)
    for arm, check in [key for key in uncertain if key[1] == "text"]:
        messages = [finding["message"] for finding in found[arm, check]["findings"]]
        assert uncertain.pop((arm, check)) == "fault"
        assert [message for message in messages if not trimmed.fullmatch(message)] == []
    return uncertain


def test_greedy_decoding_is_certified_but_for_a_first_space(tmp_path, mlx_python):
    code, found = judged(tmp_path, "greedy", mlx_python)
    assert without_trimmed(found) == {}
    assert uncertified(found) == {("narrow-drafts", "text"): "fault"}
    assert {arm for arm, _ in found} == {"draft-model", "narrow-drafts"}
    assert code == 1


def test_sampling_keeps_the_law(tmp_path, mlx_python):
    code, found = judged(tmp_path, "sampling", mlx_python)
    assert uncertified(found) == {}
    assert {arm for arm, _ in found} == {"warm", "cool-top-k", "top-p", "min-p"}
    assert code == 0


def test_the_exact_law_is_kept(tmp_path, mlx_python):
    code, found = judged(tmp_path, "exact_law", mlx_python)
    assert uncertified(found) == {}
    assert code == 0


def test_with_drafts_the_repetition_penalty_does_not_see_the_prompt(tmp_path, mlx_python):
    """A defect of the engine; every other parameter is certified."""
    code, found = judged(tmp_path, "parameters", mlx_python)
    assert code == 1
    assert silent(tmp_path) == set()
    arm = "draft-model.repetition_penalty-1.3"
    assert without_trimmed(found) == {(arm, check): "fault" for check in ("greedy_equality", "accounting")}
    assert all("lead" in finding["message"] for finding in found[arm, "greedy_equality"]["findings"])


def test_planted_faults_are_caught_beside_a_clean_arm(tmp_path, mlx_python):
    pythons = {
        "leaking": planted(tmp_path / "leak", mlx_python, LEAK),
        "stale-cache": planted(tmp_path / "stale", mlx_python, STALE_CACHE),
    }
    arm = {"proposer": {"kind": "draft_model", "model": "draft", "gamma": 4}, "verifier": "greedy"}
    arm["checks"] = ["greedy_equality", "anchor", "reconciliation"]
    arms = [{"name": name, **arm, "engine": {"python": python}} for name, python in pythons.items()]
    document = with_python(
        {
            "version": 1,
            "name": "planted",
            "backend": "mlx_lm",
            "batch_size": 1,
            "models": {"target": "bundled:target", "draft": "bundled:draft"},
            "workloads": [{"name": "code", "prompts": str(ROOT / "suites" / "prompts" / "code.jsonl"), "limit": 8}],
            "sampling": {"max_new_tokens": 32, "temperature": 0},
            "coverage": {"least": 3, "waive": list(UNREACHED)},
            "arms": [{"name": "sound", **arm}, *arms],
        },
        mlx_python,
    )
    suite = tmp_path / "planted.yaml"
    suite.write_text(yaml.safe_dump(document))
    allowed = [part for python in (mlx_python, *pythons.values()) for part in ("--allow-engine-python", python)]
    code, found = verdicts(tmp_path, suite, *allowed)
    assert code == 1
    sound = {check: each["verdict"] for (arm, check), each in found.items() if arm == "sound"}
    # eight prompts bound the anchor's total variation loosely
    assert sound.pop("anchor") == "inconclusive"
    assert set(sound.values()) == {"certified"}
    assert found["leaking", "greedy_equality"]["verdict"] == "fault"
    accounts = found["leaking", "reconciliation"]
    # ids are compared: no near-tie lies between a draw and its return
    assert accounts["verdict"] == "fault"
    assert "returned tokens that the target did not draw" in accounts["summary"]
    assert found["stale-cache", "reconciliation"]["verdict"] == "certified"
    assert found["stale-cache", "anchor"]["verdict"] == "fault"
