"""What holds of every engine in a process of its own, as far as it has it; `engines` says for which arms."""

import shutil
from dataclasses import replace

import pytest

from audit.selftest.engines import ControlSize, controls_of
from engine.backends.engine_spec import EngineSpec
from engine.core.errors import ModelError
from engine.core.registry import CONVERTERS, resolve
from engine.core.types import FinishReason, Protocol, SamplingParams
from tests.support.engine_suites import ROOT, uncertified, verdicts

from .engines import ENGINES, LLAMA, OPENVINO, ORT, cases, escaped, generated, sign_again, tokens_of
from .llama_cpp.weights import change_gguf
from .onnxruntime.weights import change_onnx
from .openvino.weights import change_openvino

LEAK = 0.05
SIZE = ControlSize(12, 1500, LEAK)
CONTROLS = {
    LLAMA.name: {"plain", "draft_model", "drawn_drafts", "ngram_simple"},
    OPENVINO.name: {"plain", "prompt_lookup"},
}
PLANTED = """
version: 1
name: planted
backend: {backend}
batch_size: 1
engine: {{threads: 1, {format}: {{target: {target}, draft: {draft}}}}}
models: {{target: "bundled:target", draft: "bundled:medium_draft"}}
workloads: [{{name: code, prompts: {prompts}, limit: {limit}}}]
sampling: {{max_new_tokens: 48, temperature: 0}}
arms:
  - name: sound
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: greedy
    checks: [greedy_equality, {check}]
  - name: other-weights
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: greedy
    engine: {{threads: 1, {format}: {{target: {changed}, draft: {draft}}}}}
    checks: [greedy_equality, {check}]
"""
CONVERTED = [(engine, engine.format) for engine in ENGINES if engine.format is not None]
CHANGES = {LLAMA.name: change_gguf, ORT.name: change_onnx, OPENVINO.name: change_openvino}
CHECKS = {LLAMA.name: ("reconciliation", 8), ORT.name: ("anchor", 6), OPENVINO.name: ("logprob_closeness", 8)}
RULES = {LLAMA.name: Protocol.GUMBEL}
"""The rule that matches drafts with draws, where it is another than chain."""


def over(arms):
    return cases(*((engine, name) for engine in ENGINES for name in getattr(engine, arms)))


@pytest.mark.parametrize(("engine", "name"), over("repeating"), indirect=["engine"])
def test_a_seed_gives_the_same_tokens_again_and_another_seed_others(engine, arm, name):
    tested, asked = arm(name, RULES.get(engine.name, Protocol.CHAIN)), replace(engine.sampled, temperature=1.0)
    first, again = generated(tested, asked), generated(tested, asked)
    assert tokens_of(first) == tokens_of(again)
    assert tokens_of(generated(tested, replace(asked, seed=1))) != tokens_of(first)


@pytest.mark.parametrize(("engine", "name"), over("matched"), indirect=["engine"])
def test_matched_drafts_draw_the_tokens_of_plain_sampling(engine, arm, name):
    """The engine draws from p and compares, with the numbers of the request's own generator."""
    rule = RULES.get(engine.name, Protocol.CHAIN)
    drafted, undrafted = (generated(arm(each, rule), engine.sampled) for each in (name, "plain"))
    assert tokens_of(drafted) == tokens_of(undrafted)
    if engine is ORT:
        assert sum(answer.facts["speculation"]["accepted"] for answer in drafted) > 0


@pytest.mark.parametrize(("engine", "name"), over("stopping"), indirect=["engine"])
def test_a_stop_token_ends_the_answer(arm, plain, name):
    stop = plain[0].tokens[5]
    answer = generated(arm(name), SamplingParams(max_new_tokens=32, stop_token_ids=(stop,)))[0]
    assert answer.tokens == plain[0].tokens[: plain[0].tokens.index(stop) + 1]
    assert answer.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("engine", "name", "parameters"),
    [
        pytest.param(engine, name, key, marks=getattr(pytest.mark, engine.mark), id=f"{engine.mark}-{name}-{key}")
        for engine in ENGINES
        for name in engine.bounded
        for key in engine.possible
    ],
    indirect=["engine"],
)
def test_no_token_escapes_the_parameters(engine, arm, name, parameters):
    assert escaped(arm, name, engine.possible[parameters]) == 0


@pytest.mark.parametrize(("engine", "key"), cases(*CONVERTED), indirect=["engine"])
def test_a_folder_of_another_model_is_refused(backend, converted, key):
    with pytest.raises(ModelError, match="converted from another model than bundled:target"):
        backend.arm(EngineSpec(Protocol.GREEDY, engine={key: {"target": str(converted["draft"].folder)}}))


@pytest.mark.parametrize(("engine", "key"), cases((LLAMA, "gguf"), (OPENVINO, "openvino")), indirect=["engine"])
def test_a_sound_engine_keeps_the_exact_law_and_a_planted_leak_is_found(engine, tmp_path, key):
    results = list(controls_of(resolve(CONVERTERS, key, "format"), tmp_path, SIZE))
    for result in results:
        print(*result.row(), f"{result.judged.needed(0.02)} tokens find a leak of 2 % with probability 0.9")
    assert {result.arm for result in results} == CONTROLS[engine.name]
    assert [result.row() for result in results if not result.right] == []
    assert all(result.judged.needed(LEAK) < result.judged.tokens for result in results)


@pytest.mark.parametrize(("engine", "key"), cases(*CONVERTED), indirect=["engine"])
def test_a_speculating_engine_with_other_weights_is_caught(engine, tmp_path, converted, key):
    """The manifest agrees with the changed files: only the tokens and their numbers tell."""
    changed, (check, limit) = tmp_path / "changed", CHECKS[engine.name]
    shutil.copytree(converted["target"].folder, changed)
    CHANGES[engine.name](changed)
    sign_again(changed)
    named = {name: model.folder for name, model in converted.items()} | {"backend": engine.name, "format": key}
    suite, prompts = tmp_path / "planted.yaml", ROOT / "suites" / "prompts" / "code.jsonl"
    suite.write_text(PLANTED.format(**named, changed=changed, prompts=prompts, check=check, limit=limit))
    code, judged = verdicts(tmp_path, suite)
    assert code == 1
    found = {key: result["verdict"] for key, result in judged.items()}
    if engine is LLAMA:
        assert uncertified(judged) == {("other-weights", "greedy_equality"): "fault"}
    elif engine is ORT:
        assert {found["other-weights", each] for each in ("greedy_equality", check)} == {"fault"}
        assert "fault" not in {found["sound", each] for each in ("greedy_equality", check)}
    else:
        assert found["other-weights", check] == "fault"
        assert found["other-weights", "greedy_equality"] != "certified"
        assert {found["sound", each] for each in ("greedy_equality", check)} == {"certified"}
