"""The pytest plug-in in a project with its own conftest: pass, fail, undecided, interrupted; xdist; JUnit."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml

from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from engine.backends.native.backend import open_models
from tests.audit.gate.attacks.honest import SUITE
from tests.http.server import serving

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pytest_plugin")]
CONFTEST = """
import pytest

@pytest.fixture
def greeting():
    return "hello"
"""
OWN = """
def test_of_the_project(greeting):
    assert greeting == "hello"
"""
PLUGIN = ("-p", "audit.api.pytest_plugin")


UNSURE = [SUITE["arms"][0], SUITE["arms"][1] | {"checks": {"replay": {}, "acceptance_theory": {"margin": 0.0001}}}]
SUITES = {
    "sound": SUITE,
    "broken": SUITE | {"arms": [SUITE["arms"][0], SUITE["arms"][1] | {"fault": "lenient_10_percent"}]},
    "unsure": SUITE | {"arms": UNSURE},
}


@pytest.fixture
def project(pytester, monkeypatch):
    """Three suites and a test of the project's own. Plug-ins load by name alone, whatever is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_own=OWN)
    for name, suite in SUITES.items():
        (pytester.path / f"{name}.audit.yaml").write_text(json.dumps(suite))
    return pytester


def test_each_claim_about_each_arm_is_a_test(project):
    result = project.runpytest_subprocess(*PLUGIN, "-v", "--junitxml", "out.xml")
    told = result.stdout.str()
    assert result.ret == 1, told
    assert "sound.audit.yaml::greedy[replay] PASSED" in told
    assert "unsure.audit.yaml::sampled[acceptance] ERROR" in told
    assert "sampled: acceptance is undecided" in told
    assert "test_own.py::test_of_the_project PASSED" in told
    assert "Traceback" not in told
    cases = {
        (case.classname, case.name): case for suite in JUnitXml.fromfile(project.path / "out.xml") for case in suite
    }
    kinds = {key[1]: [type(part) for part in case.result] for key, case in cases.items() if "broken" in key[0]}
    assert Failure in kinds["sampled[replay]"], kinds
    (unsure,) = [case for key, case in cases.items() if key[1] == "sampled[acceptance]" and "unsure" in key[0]]
    assert [type(part) for part in unsure.result] == [Error]
    sound = next(case for key, case in cases.items() if key[1] == "sampled[replay]" and "sound" in key[0])
    properties = {item.get("name"): item.get("value") for item in sound._elem.iter("property")}
    assert properties["replay"] == "certified"
    assert all(len(properties[name]) == 64 for name in ("record_root", "suite_sha256"))


@pytest.mark.parametrize(("way", "kind"), [("skip", "skipped"), ("fail", "failed"), ("error", "errors")])
def test_undecided_is_an_outcome_of_its_own(project, way, kind):
    result = project.runpytest_subprocess(*PLUGIN, f"--audit-undecided={way}", "unsure.audit.yaml", "-rs")
    assert result.parseoutcomes()[kind] == 1, result.stdout.str()
    assert (result.ret == 0) is (way == "skip")


def test_expressions_select_arms_and_claims(project):
    result = project.runpytest_subprocess(*PLUGIN, "-k", "sound and greedy", "--audit-store", "kept.db")
    assert result.parseoutcomes().keys() == {"passed", "deselected"}, result.stdout.str()
    listed = subprocess.run(
        [sys.executable, "-m", "audit", "query", "acceptance", "--format", "json", "--store", "kept.db"],
        cwd=project.path,
        capture_output=True,
        text=True,
        check=True,
    )
    arms = {row["arm"] for row in json.loads(listed.stdout)}
    assert "greedy" in arms
    assert not any(arm.startswith("sampled") for arm in arms)


def test_workers_run_the_arms_of_their_tests(project):
    command = (
        *PLUGIN,
        "-p",
        "xdist",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "sound.audit.yaml",
        "-v",
        "--audit-store",
        "kept.db",
    )
    result = project.runpytest_subprocess(*command)
    alone = project.runpytest_subprocess(*PLUGIN, "sound.audit.yaml", "-v")
    assert result.ret == alone.ret == 0, result.stdout.str()
    assert result.parseoutcomes() == alone.parseoutcomes()


def test_a_mistake_in_a_suite_is_one_line(project):
    (project.path / "wrong.audit.yaml").write_text(json.dumps(SUITE | {"armz": []}))
    result = project.runpytest_subprocess(*PLUGIN, "wrong.audit.yaml")
    told = result.stdout.str()
    assert result.ret == 2
    assert 'unknown key "armz"' in told
    assert "Traceback" not in told


def answered(store: Path) -> None:
    """Wait until a run has answered some requests."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(store)) as database:
            if database.execute("SELECT COUNT(*) FROM request").fetchone()[0] > 10:
                return
        time.sleep(0.5)


def test_an_interrupted_run_says_how_to_go_on(project):
    """The run is on record, and pytest ends with its own code for it."""
    long = SUITE | {"samples": 400, "arms": [SUITE["arms"][1]]}
    (project.path / "long.audit.yaml").write_text(json.dumps(long))
    # a shell in the background lets its children ignore the signal
    reset = "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{reset}; sys.exit(pytest.main({[*PLUGIN, 'long.audit.yaml', '--audit-store', 'kept.db']!r}))"
    run = subprocess.Popen([sys.executable, "-c", code], cwd=project.path, stdout=subprocess.PIPE, text=True)
    try:
        answered(project.path / "kept.db")
        run.send_signal(signal.SIGINT)
        told, _ = run.communicate(timeout=120)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 2, told
    assert "interrupted; continue with: audit resume" in told


def test_the_fixtures_run_suites_and_ask_servers(project):
    backend = open_models({name: ModelSource(f"bundled:{name}") for name in ("target", "draft")})
    decode = LocalTarget(ModelSource("bundled:target")).tokens.decode
    (project.path / "sound.yaml").write_text(json.dumps(SUITE))
    with serving(backend, decode) as plain, serving(backend, decode, 4) as speculating:
        project.makepyfile(
            test_fixtures=f"""
            import audit

            def test_suite(audit_run, audit_store):
                result = audit_run("sound.yaml")
                assert result.passed
                assert audit.open_store(audit_store).run().id == result.id

            def test_server(audit_endpoint):
                result = audit_endpoint(
                    {speculating.url!r}, {plain.url!r}, ["the quick brown fox", "the lazy dog"],
                    engine={{"model": "bundled", "server": "vllm", "api": "completions", "logprobs": 1}},
                    sampling={{"max_new_tokens": 8}},
                )
                assert {{row["arm"] for row in result.verdicts()}} == {{"greedy", "sampled"}}
                assert "fault" not in {{row["verdict"] for row in result.verdicts()}}
            """
        )
        result = project.runpytest_subprocess(*PLUGIN, "test_fixtures.py")
    result.assert_outcomes(passed=2)
