"""A suite from somebody else: it touches what its reader allows, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import audit
import schemas
from audit.errors import UserError
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from audit.suite import access
from audit.suite.access import outside_of, require_allowed
from audit.suite.allowances import Allowances, config_file, configured, require_host
from audit.suite.loader import load_suite
from engine.backends import REGISTRY, outside_access
from engine.backends.access import OutsideAccess, OutsideKind
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file
from tests.support.observers import StopsAfter

SERVED = """\
version: 1
name: elsewhere
backend: openai
models: {{target: 'served:m'}}
workloads: [{{name: words, prompts: {prompts}}}]
engine: {{url: 'http://127.0.0.1:9/v1'}}
sampling: {{max_new_tokens: 4}}
arms:
  - {{name: a, proposer: {{kind: served, gamma: 2}}, verifier: greedy, checks: [liveness], engine: {engine}}}
"""
VLLM = """\
version: 1
name: elsewhere
backend: vllm
models: {{target: 'bundled:target'}}
workloads: [{{name: words, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 4}}
arms:
  - name: a
    proposer: {{kind: {kind}, gamma: 2, options: {options}}}
    verifier: greedy
    checks: [liveness]
    engine: {engine}
"""
SECRET = "AWS_SECRET_ACCESS_KEY"


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def served(folder: Path, engine: dict[str, object], prompts: str = "prompts.jsonl") -> Path:
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "abc"}\n')
    path = folder / "suite.yaml"
    path.write_text(SERVED.format(engine=json.dumps(engine), prompts=prompts))
    return path


def on_vllm(folder: Path, engine: dict[str, object], kind: str = "ngram", options: object = ()) -> Path:
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "abc"}\n')
    path = folder / "suite.yaml"
    path.write_text(VLLM.format(engine=json.dumps(engine), kind=kind, options=json.dumps(options or {})))
    return path


def allow(text: str) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(text)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_suite_cannot_read_a_variable_or_reach_a_host_that_nobody_allowed(command, tmp_path, monkeypatch):
    monkeypatch.setenv(SECRET, "a-secret-of-the-user")
    path = served(tmp_path, {"api_key_env": SECRET, "url": "https://elsewhere.example/v1"})
    more = ["--store", str(tmp_path / "audit.db")] if command == "run" else ["--gamma", "1..2"]
    result = invoke(command, str(path), *more)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert f"read the variable {SECRET} (engine.api_key_env of arm a)" in line
    assert f"add --allow-env {SECRET} --allow-host elsewhere.example:443" in line
    assert str(config_file()) in line
    assert "a-secret" not in line
    assert not (tmp_path / "audit.db").exists()


@pytest.mark.medium
@pytest.mark.parametrize("command", ["resume", "minimize"])
def test_a_run_that_goes_on_needs_the_allowances_again(command, tmp_path):
    path, store = suite_file(tmp_path), str(tmp_path / "audit.db")
    with Store.open(store, create=True) as opened, pytest.raises(Interrupted):
        run(prepare(load_suite(path)), opened, StopsAfter(2))
    served(tmp_path, {"url": "http://elsewhere.example/v1"})
    result = invoke(command, "latest", "--store", store)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--allow-host elsewhere.example:80" in result.stderr


def test_each_option_and_the_configuration_allow_what_they_name(tmp_path):
    suite = load_suite(served(tmp_path, {"api_key_env": "MY_KEY", "url": "https://Elsewhere.example:8443/v1"}))
    asked = Allowances(env=("MY_KEY",))
    for hosts in (("elsewhere.example",), ("ELSEWHERE.example:8443",)):
        require_allowed(suite, replace(asked, hosts=hosts))
    for hosts in ((), ("elsewhere.example:443",), ("example",), ("else",)):
        with pytest.raises(UserError, match=r"--allow-host elsewhere\.example:8443"):
            require_allowed(suite, replace(asked, hosts=hosts))
    with pytest.raises(UserError, match="--allow-env MY_KEY"):
        require_allowed(suite, Allowances(hosts=("elsewhere.example",)))
    allow('version = 1\n[allow]\nenv = ["MY_KEY"]\nhosts = ["elsewhere.example"]\n')
    require_allowed(suite, configured())


def test_the_suggested_options_are_quoted_for_a_shell(tmp_path, monkeypatch):
    code = OutsideAccess(OutsideKind.CODE, "a b'; c", "engine.logits_processors")
    monkeypatch.setattr(access, "_settings", lambda _suite: [code])
    with pytest.raises(UserError, match=re.escape("--allow-engine-code 'a b'\"'\"'; c'")):
        require_allowed(load_suite(suite_file(tmp_path)), Allowances())


@pytest.mark.parametrize(("key", "address"), [("metrics_url", "http://b.example/m"), ("proxy", "http://b.example:3")])
def test_every_address_of_an_endpoint_counts(tmp_path, key, address):
    suite = load_suite(served(tmp_path, {key: address}))
    with pytest.raises(UserError, match=rf"engine\.{key} of arm a.*--allow-host b\.example"):
        prepare(suite)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.1", "[::1]"])
def test_this_machine_needs_no_allowance(tmp_path, host):
    require_allowed(load_suite(served(tmp_path, {"url": f"http://{host}:8000/v1"})), Allowances())


@pytest.mark.parametrize("host", ["127.1", "0.0.0.0", "2130706433", "localhost.example", "[::ffff:127.0.0.1]"])
def test_what_only_resembles_this_machine_does(tmp_path, host):
    with pytest.raises(UserError, match="--allow-host"):
        require_allowed(load_suite(served(tmp_path, {"url": f"http://{host}:8000/v1"})), Allowances())


def test_an_address_that_two_parsers_read_differently_is_none(tmp_path):
    for address in (r"http://a.example\@b.example/v1", "http://a.example /v1", "http://a.example/\tv1", "http://é/v1"):
        with pytest.raises(UserError, match=r"engine: url .*"):
            outside_of(load_suite(served(tmp_path, {"url": address})))


def test_a_suite_cannot_start_a_program_that_nobody_allowed(tmp_path):
    proof = tmp_path / "proof"
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {proof}\nexit 1\n")
    program.chmod(0o755)
    path = on_vllm(tmp_path, {"python": str(program)})
    result = invoke("run", str(path), "--store", str(tmp_path / "audit.db"))
    assert result.exit_code == 2
    assert f"start the program {program} (engine.python of arm a)" in result.stderr
    assert f"--allow-engine-python {program}" in result.stderr
    assert not proof.exists()
    suite = load_suite(path)
    require_allowed(suite, Allowances(engine_python=(str(program),)))
    with pytest.raises(UserError):
        require_allowed(suite, Allowances(engine_python=(str(tmp_path / "another"),)))


def test_the_interpreter_of_this_process_and_a_name_on_the_path_are_the_files_they_are(tmp_path, monkeypatch):
    require_allowed(load_suite(on_vllm(tmp_path, {"python": sys.executable})), Allowances())
    program = tmp_path / "snake"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    require_allowed(load_suite(on_vllm(tmp_path, {"python": "snake"})), Allowances(engine_python=(str(program),)))


@pytest.mark.parametrize(
    ("engine", "kind", "options", "name"),
    [
        ({"trust_remote_code": True}, "ngram", {}, "trust_remote_code"),
        ({"logits_processors": ["evil:Class"]}, "ngram", {}, "evil:Class"),
        ({"compilation_config": {"backend": "evil.function"}}, "ngram", {}, "compilation_config.backend"),
        ({}, "custom_class", {"model": "evil.Class"}, "evil.Class"),
    ],
)
def test_code_that_an_engine_would_load_is_named(tmp_path, engine, kind, options, name):
    suite = load_suite(on_vllm(tmp_path, engine, kind, options))
    with pytest.raises(UserError, match=f"have its engine load {name} .*--allow-engine-code {name}"):
        require_allowed(suite, Allowances())
    require_allowed(suite, Allowances(engine_code=(name,)))


def test_our_own_classes_need_no_allowance(tmp_path):
    options = {"model": "engine.backends.vllm.hooks.worker.RecordingWorker"}
    suite = load_suite(on_vllm(tmp_path, {"compilation_config": {"mode": 0}}, "custom_class", options))
    require_allowed(suite, Allowances())


def test_validate_lists_what_a_suite_would_touch(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "p.jsonl").write_text('{"id": "a", "prompt": "abc"}\n')
    home = tmp_path / "home"
    home.mkdir()
    path = served(home, {"api_key_env": "K", "metrics_url": "http://b.example/m"}, "../elsewhere/p.jsonl")
    result = invoke("validate", str(path), "--allow-env", "K")
    touched = [line.removeprefix("touches    ") for line in result.stdout.splitlines() if line.startswith("touches")]
    assert touched == [
        "host 127.0.0.1:9 (engine.url)",
        "variable K (engine.api_key_env of arm a)",
        "host b.example:80 (engine.metrics_url of arm a): not allowed, needs --allow-host",
        f"file {tmp_path / 'elsewhere' / 'p.jsonl'} (workloads[0].prompts)",
    ]
    assert result.exit_code == 0
    document = json.loads(invoke("validate", str(path), "--json").stdout)
    assert document["touches"][1] == {
        "kind": "variable",
        "name": "K",
        "key": "engine.api_key_env of arm a",
        "allowed": False,
    }


def test_models_of_the_hub_and_programs_are_listed(tmp_path):
    path = on_vllm(tmp_path, {"python": "/opt/python", "adapters": {"one": "made:1", "two": "adapter"}})
    path.write_text(path.read_text().replace("bundled:target", "hf:some/model"))
    assert outside_of(load_suite(path)) == (
        OutsideAccess(OutsideKind.PROGRAM, "/opt/python", "engine.python of arm a"),
        OutsideAccess(OutsideKind.FILE, str(Path("adapter").absolute()), "engine.adapters.two of arm a"),
        OutsideAccess(OutsideKind.HUB, "hf:some/model", "models.target"),
    )


@pytest.mark.medium
def test_no_packaged_suite_needs_an_allowance():
    home = Path(__file__).parents[3] / "suites"
    for path in sorted(home.rglob("*.yaml")):
        if "policies" not in path.parts and "arms:" in path.read_text(encoding="utf-8"):
            suite = load_suite(path)
            require_allowed(suite, Allowances())
            assert not [each for each in outside_of(suite) if each.kind is OutsideKind.FILE], path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 1\n[allow", "bad TOML"),
        ("version = 1\nallow = 3\n", "allow is 3; write a mapping"),
        ("[allow]\n", "the document lacks the key version"),
        ("version = 2\n", "version is 2; write 1"),
        ("version = 1\n[allow]\nhost = []\n", 'unknown key "host" in allow; did you mean hosts'),
        ('version = 1\n[allow]\nhosts = ["https://a.example"]\n', r"allow\.hosts\[0\] has"),
        ('version = 1\n[allow]\nenv = "KEY"\n', 'allow.env is "KEY"; write a list'),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line(text, message):
    allow(text)
    with pytest.raises(UserError, match=message) as caught:
        configured()
    assert str(caught.value).startswith(f"{config_file()}: ")
    assert "\n" not in str(caught.value)


def test_a_whole_address_is_no_host():
    assert require_host("[::1]:80") == "[::1]:80"
    with pytest.raises(UserError, match="write HOST or HOST:PORT"):
        require_host("https://a.example/v1")


def test_the_python_interface_has_the_same_allowances(tmp_path):
    path = served(tmp_path, {"url": "http://b.example/v1"})
    with pytest.raises(UserError, match=r"--allow-host b\.example:80"):
        audit.run(path, str(tmp_path / "audit.db"))
    path = served(tmp_path, {"url": "http://b.example/v1", "api_key_env": "K"})
    with pytest.raises(UserError, match=r"read the variable K \(engine.api_key_env of arm a\); if"):
        audit.run(path, str(tmp_path / "audit.db"), allowed=audit.Allowances(hosts=("b.example",)))


def test_every_backend_lists_the_settings_that_name_programs_variables_and_addresses():
    for name, kind in REGISTRY.items():
        known = schemas.load(kind.options)["properties"] if kind.options else {}
        given = {
            key: "http://a.example" if key.endswith("url") or key == "proxy" else "A"
            for key in known
            if key in ("python", "proxy") or key.endswith(("url", "_env"))
        }
        listed = {access.key for access in outside_access(name, given, {})}
        assert listed == {f"engine.{key}" for key in given}, name
