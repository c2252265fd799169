"""Every fault of a service, planted into an arm at a clean endpoint whose suite names no check: no pass."""

import json
import shutil

import pytest

from audit.suite.loader import load_suite
from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from engine.backends.native.backend import open_models
from engine.core.errors import InvalidRequest
from engine.core.registry import SERVICE_FAULTS, resolve
from engine.faults.services import AnswerPlace
from tests.audit.invoke import invoke
from tests.http.server import serving
from tests.http.test_faults_by_default import WEIGHTS, shape
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
TURNS = {
    "workloads": [{"name": "turns", "prompts": "turns.jsonl"}],
    "samples": 6,
}
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
    "one_seed": "token_law",
}
BY = {"identity": "identity", "form": "surface_parity"}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    """A model folder whose template adds words unless it is told not to think."""
    folder = tmp_path_factory.mktemp("models") / "thinking"
    shutil.copytree(LocalTarget(ModelSource("bundled:target")).folder, folder)
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().rstrip() + "{% if enable_thinking is not defined %}Let me think again.{% endif %}")
    return str(folder)


@pytest.fixture
def ended(backend, decode, thinking, tmp_path):
    """How an audit of a suite ends whose arm has the fault; None for a clean arm."""

    def run(needs, fault):
        wants = dict(needs)
        more, arm = dict(wants.pop("more", {})), {**wants.pop("arm", {}), **({"fault": fault} if fault else {})}
        served = wants.pop("served", {})
        source, serves, reads = WEIGHTS, backend, decode
        if "chat_template_kwargs" in more:
            source = thinking
            serves = open_models({"target": ModelSource(source), "draft": ModelSource("bundled:draft")})
            reads = LocalTarget(ModelSource(source)).tokens.decode
        turns = [{"role": "user", "content": "Count to ten"}, {"role": "assistant", "content": "One two three"}]
        asked = ("Go on", "Stop", "Backwards, please", "Only even ones")
        chats = [{"id": f"t{n}", "messages": [*turns, {"role": "user", "content": text}]} for n, text in enumerate(asked)]
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
    print("RESULT", name, done.code, done.by("fault"), {k: v["summary"][:160] for k, v in done.checks["rejection"].items() if v["verdict"] == "inconclusive"})
    caught = CAUGHT.get(name, BY.get(fault.breaks))
    assert done.code in (1, 3), done.told
    assert caught in done.by("fault") | done.by("inconclusive"), done.told


@GROUP
@pytest.mark.slow
@pytest.mark.parametrize("name", ["one_seed", "streamed_text_lost", "call_arguments_lost", "grammar_dropped", "template_arguments_dropped", "earlier_turns_lost", "length_before_stop", "penalties_dropped"])
def test_without_the_fault_the_same_arm_has_none(ended, name):
    done = ended(NEEDS[name], None)
    print("CLEAN", name, done.code, done.by("fault"), {k: v["summary"][:160] for k, v in done.checks["rejection"].items() if v["verdict"] == "inconclusive"})
    assert done.by("fault") == set(), done.told
