"""Rego modules beside a policy: they make a decision stricter, and nothing that goes wrong in one allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import schemas
from audit.evidence.verdicts import Verdict
from audit.gate.decision import Decision, GateOutcome
from audit.gate.judgement import GateRequest, RegoModule
from audit.gate.policy import load_policy
from audit.gate.rego import RegoFailure, evaluate, facts_document, reasons_of
from audit.gate.subjects import Subject
from tests.audit.gate.runs import NOW, PASSING, SMALL_POLICY, TARGET, facts, stored_run
from tests.audit.invoke import invoke

pytest.importorskip("regopy")
HEAD = "package specaudit\nimport rego.v1\n"
SILENT = "deny contains reason if { false; reason := 1 }\n"
TOKENS = HEAD + (
    "default allow := false\n"
    'allow if input.run.status == "finished"\n'
    "deny contains reason if {\n"
    '    some arm in input.arms\n    arm.kind == "candidate"\n    arm.output_tokens < 5000\n'
    '    reason := sprintf("arm %s emitted %d tokens", [arm.name, arm.output_tokens])\n}\n'
)
HOSTILE = {
    "no rules": (HEAD, "rule allow is undefined"),
    "no text": ("", "does not compile"),
    "syntax": (HEAD + "deny contains {", "does not compile"),
    "another package": ("package other\nallow := true\n", "no package specaudit"),
    "allow undefined": (HEAD + SILENT + "allow if input.missing\n", "rule allow is undefined"),
    "allow no boolean": (HEAD + SILENT + 'allow := "true"\n', "rule allow is undefined or no boolean"),
    "deny misspelt": (HEAD + "allow := true\ndenny contains 1 if false\n", "rule deny is undefined"),
    "deny a boolean": (HEAD + "allow := true\ndeny := false\n", "rule deny is undefined or no set"),
    "deny of numbers": (HEAD + "allow := true\ndeny contains 5\n", "no set of texts"),
    "two values": (HEAD + SILENT + "allow := true if input.version == 1\nallow := false if input.now\n", "failed"),
    "a built-in fails": (HEAD + SILENT + 'allow if to_number("x") > 1\n', "failed"),
    "unknown function": (HEAD + SILENT + "allow if surely.unknown(1)\n", "failed"),
    "http": (
        HEAD + SILENT + 'allow if http.send({"method": "get", "url": "http://127.0.0.1:9"}).status_code\n',
        "failed",
    ),
    "recursion": (HEAD + SILENT + "f(x) := f(x + 1)\nallow if f(1)\n", "failed"),
    "memory": (HEAD + SILENT + "allow if count(numbers.range(1, 1000000000)) > 0\n", "MiB of memory"),
    "nesting": (HEAD + SILENT + f"allow := {'[' * 9000}{']' * 9000}\n", "its evaluation"),
    "time": (HEAD + SILENT + f'allow if regex.match("(a+)+$", "{"a" * 60}b")\n', "took longer than 1 s"),
    "output": (
        HEAD + SILENT + 'allow := true\nx := [y | some i in numbers.range(1, 9000); y := sprintf("%200d", [i])]\n',
        "longer than",
    ),
}


def module(text: str) -> RegoModule:
    return RegoModule("m.rego", text, "0" * 64)


def document() -> dict:
    request = GateRequest(load_policy("standard"), (Subject("target", TARGET, "x"),), "ci", NOW)
    return facts_document(facts(), request, GateOutcome(Decision.ALLOW, ()))


def test_the_facts_follow_their_schema():
    Draft202012Validator(schemas.load("gate-facts")).validate(json.loads(json.dumps(document())))


@pytest.mark.medium
def test_a_module_sees_the_facts_and_neither_variables_nor_an_output():
    answer = evaluate(module(TOKENS), document())
    assert answer == (True, tuple(f"arm {arm} emitted 600 tokens" for arm in ("greedy", "sampled")))
    seen = 'allow := true\ndeny contains name if { print("noise"); some name, _ in opa.runtime().env }\n'
    assert evaluate(module(HEAD + seen), document())[1] in ((), ("LC_CTYPE",))


@pytest.mark.parametrize("name", ["syntax", "allow undefined", "deny misspelt", "http", "recursion"])
def test_what_goes_wrong_is_no_answer(name):
    refused(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_module_gives_an_answer(name):
    refused(name)


def refused(name: str) -> None:
    text, words = HOSTILE[name]
    with pytest.raises(RegoFailure) as raised:
        evaluate(module(text), document(), timeout_s=1 if name == "time" else 10)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture
def asked(tmp_path: Path):
    urls = {}

    def ask(text: str, policy: str = SMALL_POLICY, verdict: Verdict = Verdict.CERTIFIED):
        (tmp_path / "policy.yaml").write_text(policy)
        (tmp_path / "m.rego").write_text(text)
        url = urls.get(verdict) or urls.setdefault(verdict, stored_run(tmp_path, {**PASSING, "law": verdict}))
        options = ("--policy", str(tmp_path / "policy.yaml"), "--store", url, "--trust-verdicts")
        return invoke("gate", "latest", *options, *(("--rego", str(tmp_path / "m.rego")) if text else ()))

    return ask


@pytest.mark.medium
def test_a_module_makes_a_decision_stricter_and_never_looser(asked):
    yes = HEAD + SILENT + "allow := true\n"
    allowed = asked(yes)
    assert (allowed.exit_code, "allow: rego m.rego: sha256:" in allowed.stdout) == (0, True)
    denied = asked(TOKENS)
    assert (denied.exit_code, "block: rego m.rego: arm spec emitted" in denied.stdout) == (1, True)
    broken = asked(HEAD)
    assert (broken.exit_code, "cannot decide: rego m.rego: sha256:" in broken.stdout) == (3, True)
    assert asked(yes, verdict=Verdict.FAULT).exit_code == 1


def test_allow_false_blocks():
    reason = next(iter(reasons_of(module(HEAD + SILENT + "allow := false\n"), document())))
    assert (reason.answer, reason.text) == (Decision.BLOCK, "rule allow is false")


@pytest.mark.medium
def test_a_policy_can_require_a_module_by_its_digest(asked):
    required = SMALL_POLICY + f'rego: ["sha256:{"7" * 64}"]\n'
    for text in ("", HEAD + SILENT + "allow := true\n"):
        done = asked(text, policy=required)
        assert (done.exit_code, f"requires the Rego module sha256:{'7' * 64}" in done.stdout) == (3, True)


@pytest.mark.medium
def test_a_missing_engine_is_one_line(asked, monkeypatch):
    monkeypatch.setattr("audit.gate.judgement.find_spec", lambda name: None)
    done = asked(HEAD)
    assert (done.exit_code, done.stdout, "pip install 'specaudit[rego]'" in done.stderr) == (2, "", True)
