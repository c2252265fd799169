"""Every fault of a service, planted into an arm at a clean endpoint whose suite names no check: no pass."""

import json
from pathlib import Path

import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from engine.backends.native.backend import open_models
from engine.core.registry import SERVICE_FAULTS, resolve
from engine.faults.services import AnswerPlace
from tests.audit.invoke import invoke
from tests.http.endpoint_shape import WEIGHTS, shape
from tests.http.server import serving
from tests.support.readme_suite import audited

GROUP = pytest.mark.xdist_group("http")
CLAIMS = {"identity", "form", "counts", "tools", "request"}
LARGE = {"prompts": 50, "more": {"samples": 3}}
"""Enough for a pass."""
GREEDY = {"verifier": "greedy", "sampling": {"temperature": 0}}
STREAMED = {"more": {"engine": {"stream": "both"}, "sampling": {"max_new_tokens": 24}}, "arm": GREEDY}
TOOLS = {
    "workloads": [{"name": "tools", "prompts": "suites:prompts/tool_calls.jsonl"}],
    "sampling": {"max_new_tokens": 96},
    "engine": {"tool_choice": "auto"},
}
GRAMMARS = {
    "workloads": [{"name": "structured", "prompts": "suites:prompts/structured.jsonl", "limit": 24}],
    "sampling": {"max_new_tokens": 96},
}
TURNS = {"workloads": [{"name": "turns", "prompts": "turns.jsonl"}], "samples": 6}
QUIET = {"enable_thinking": False}
NEEDS = {
    "block_used": LARGE,
    "first_slot_counted": LARGE,
    "length_before_stop": {"more": {"sampling": {"max_new_tokens": 24, "stop": ["e"]}}},
    "streamed_text_lost": STREAMED,
    "call_arguments_lost": {"more": TOOLS, "arm": GREEDY, "served": {"calls": "sound"}},
    "truncation_dropped": LARGE,
    "penalties_dropped": {"more": {"sampling": {"max_new_tokens": 24, "presence_penalty": 1.5}}},
    "grammar_dropped": {"more": GRAMMARS},
    "template_arguments_dropped": {"more": {"chat_template_kwargs": QUIET}},
    "earlier_turns_lost": {"more": TURNS},
    "slot_of_cancelled": {"arm": {**GREEDY, "cancel_beside": 2}},
    "one_seed": LARGE,
}
"""What an arm must have for a fault to show; README's suite by default."""
CAUGHT = {
    "block_used": "reconciliation",
    "first_slot_counted": "reconciliation",
    "length_before_stop": "accounting",
    "streamed_text_lost": "text",
    "call_arguments_lost": "tool_call_equality",
    "grammar_dropped": "schema_conformance",
    "template_arguments_dropped": "logprob_closeness",
    "earlier_turns_lost": "logprob_closeness",
    "sampled_as_greedy": "token_law",
    "truncation_dropped": "token_law",
    "penalties_dropped": "token_law",
    "slot_of_cancelled": "greedy_equality",
    "one_seed": "token_law",
}
SUITES = sorted((Path(__file__).parents[2] / "suites" / "known_bad" / "openai").glob("*.yaml"))
BY = {"identity": "identity", "form": "surface_parity"}


@pytest.fixture
def ended(backend, decode, thinking, tmp_path):
    """How an audit of a suite ends whose arm has the fault; None for a clean arm."""

    def run(needs, fault):
        wants = dict(needs)
        more, arm = dict(wants.pop("more", {})), {**wants.pop("arm", {}), **({"fault": fault} if fault else {})}
        served = wants.pop("served", {})
        source, serves, reads = WEIGHTS, backend, decode
        if "chat_template_kwargs" in more:
            source = str(thinking)
            serves = open_models({"target": ModelSource(source), "draft": ModelSource("bundled:draft")})
            reads = LocalTarget(ModelSource(source)).tokens.decode
        first = [{"role": "user", "content": "Count to ten"}]
        asked = ("Go on", "Stop", "Backwards, please", "Only even ones")
        chats = [{"id": f"t{n}", "messages": first, "turns": [text, "And so on"]} for n, text in enumerate(asked)]
        (tmp_path / "turns.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
        with serving(serves, reads, **served) as plain, serving(serves, reads, 4, **served) as speculating:
            engine = {"url": plain.url, "model": "bundled", "server": "vllm", **more.pop("engine", {})}
            made = shape(plain, speculating, speculating, source, more={**more, "engine": engine}, **wants)
            made.arm.update(arm)
            return audited(tmp_path, made)

    return run


@GROUP
@pytest.mark.slow
@pytest.mark.parametrize("name", SERVICE_FAULTS)
def test_no_fault_of_a_service_ends_with_a_pass(ended, name):
    fault = resolve(SERVICE_FAULTS, name, "fault")
    done = ended(NEEDS.get(name, {}), name)
    caught = CAUGHT.get(name, BY.get(fault.breaks))
    assert done.code in (1, 3), done.told
    assert caught in done.by("fault") | done.by("inconclusive"), done.told


@GROUP
@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_without_the_fault_the_same_arm_has_none(ended, name):
    done = ended(NEEDS[name], None)
    assert done.by("fault") == set(), done.told


@GROUP
@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
@pytest.mark.parametrize("broken", [True, False])
def test_a_known_bad_suite_fails_and_without_its_fault_has_none(backend, decode, tmp_path, suite, broken):
    lines = [line for line in suite.read_text("utf-8").splitlines() if broken or not line.strip().startswith("fault:")]
    with serving(backend, decode) as plain, serving(backend, decode, 4) as speculating:
        ours = {"../../prompts": "suites:prompts", "http://127.0.0.1:8000/v1": plain.url, "my-model": "bundled"}
        text = "\n".join(lines).replace("http://127.0.0.1:8001/v1", speculating.url)
        for old, new in ours.items():
            text = text.replace(old, new)
        (tmp_path / "suite.yaml").write_text(text)
        results = ("--store", str(tmp_path / "audit.db"), "--results", str(tmp_path / "results.json"))
        done = invoke("run", str(tmp_path / "suite.yaml"), *results)
    document = json.loads((tmp_path / "results.json").read_text("utf-8"))
    (arm,) = [arm for arm in document["run"]["arms"] if arm["kind"] == "candidate"]
    assert arm["effective"]["fault"] == (suite.stem if broken else None)
    assert (done.exit_code == 1) is broken, done.output
    assert ("fault" in {check["verdict"] for check in document["checks"]}) is broken, done.output


@pytest.mark.parametrize("name", SERVICE_FAULTS)
def test_a_fault_says_what_it_is_and_leaves_what_is_no_answer_alone(name):
    fault = resolve(SERVICE_FAULTS, name, "fault")
    assert fault.breaks in CLAIMS
    assert "#" in fault.upstream or fault.upstream.startswith("none known: ")
    for document in ({}, {"choices": []}, {"choices": None, "usage": None}, {"error": {"message": "no"}}):
        changed = fault.answer(document, AnswerPlace(9))
        assert {key: changed[key] for key in document} == document
    assert fault.body({"model": "m"})["model"] == "m"


def test_an_unknown_fault_of_a_service_is_refused(tmp_path):
    suite = {"version": 1, "name": "x", "backend": "openai", "models": {"target": "served:m"}, "arms": [{"name": "a"}]}
    suite["arms"][0] |= {"proposer": {"kind": "served", "gamma": 4}, "verifier": "greedy", "fault": "kv_residue"}
    suite |= {
        "engine": {"url": "http://127.0.0.1:1/v1"},
        "workloads": [{"name": "c", "prompts": "suites:prompts/chat.jsonl"}],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    done = invoke("run", str(tmp_path / "suite.yaml"), "--store", str(tmp_path / "audit.db"))
    assert done.exit_code == 2
    assert 'unknown fault "kv_residue"; accepted: block_used' in done.stderr
