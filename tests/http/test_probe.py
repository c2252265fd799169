"""`audit probe`: what a server does is told apart from what it only takes, and the written suite passes or finds."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.audit.invoke import invoke
from tests.http.script import Misdeed, Script
from tests.http.sglang import NativeHandler

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("http")]
KEY = "sk-probe-0123456789"


def probed(server, *more):
    done = invoke("probe", server.url, "--json", *more)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def outcomes(document):
    return {each["feature"]: each["outcome"] for each in document["features"]}


def test_a_server_that_does_everything(serve):
    with serve(gamma=3, calls="sound") as server:
        document = probed(server)
    found = outcomes(document)
    kept = ("chat", "completions", "stream", "repeatable", "logprobs", "token ids", "prompt as ids", "seed")
    assert {name: found[name] for name in kept} == dict.fromkeys(kept, "yes")
    assert {found[name] for name in ("top_p", "top_k", "min_p", "json schema", "drafts per answer")} == {"yes"}
    assert (document["level"], document["tokens"], document["api"]) == (1, "server", "chat")
    assert (document["speculates"], document["counters"]) == (True, True)


def test_what_is_only_taken_is_ignored(serve):
    with serve(ids=False, scores=False, loose=True, metrics=False) as server:
        document = probed(server)
    found = outcomes(document)
    ignored = ("logprobs", "token ids", "json schema", "tools")
    assert {name: found[name] for name in ignored} == dict.fromkeys(ignored, "ignored")
    assert found["drafts per answer"] == "no"
    assert (document["level"], document["tokens"], document["speculates"]) == (0, "characters", None)


@pytest.mark.parametrize("own", [{}, {"handler": NativeHandler}], ids=["chat", "generate"])
def test_the_written_suite_runs_and_passes(serve, tmp_path, own):
    suite, store = tmp_path / "probed.yaml", tmp_path / "audit.db"
    with serve(**own) as plain, serve(gamma=3, **own) as server:
        options = ["--suite", str(suite), "--plain-url", plain.url, "--target", "bundled:target"]
        done = invoke("probe", server.url, *options, *(["--own-route"] if own else []))
        assert done.exit_code == 0, done.stderr
        smaller(suite)
        ran = invoke("run", str(suite), "--store", str(store), "--results", str(tmp_path / "results.json"))
    assert yaml.safe_load(suite.read_text())["engine"]["api"] == ("generate" if own else "chat")
    results = json.loads((tmp_path / "results.json").read_text())
    verdicts = {(check["arm"], check["check"]): check["verdict"] for check in results["checks"]}
    assert ran.exit_code in (0, 3), ran.output
    assert "fault" not in verdicts.values(), ran.output
    assert verdicts["greedy", "liveness"] == verdicts["greedy", "configuration"] == "certified"
    assert verdicts["greedy", "reconciliation"] == "certified"


def smaller(suite):
    """Leave two prompts of one workload and short answers."""
    document = yaml.safe_load(suite.read_text())
    document["workloads"] = [{**document["workloads"][0], "limit": 2}]
    document["sampling"]["max_new_tokens"] = 12
    suite.write_text(yaml.safe_dump(document))


def test_no_key_and_no_word_of_a_hostile_server_gets_through(serve, monkeypatch):
    monkeypatch.setenv("PROBE_KEY", KEY)
    names = ("bundled", "\u202etac\x1b]0;owned\x07")
    with serve(key=KEY, models=names) as server:
        refused = invoke("probe", server.url)
        several = invoke("probe", server.url, "--api-key-env", "PROBE_KEY")
        done = invoke("probe", server.url, "--api-key-env", "PROBE_KEY", "--model", "bundled")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert (several.exit_code, several.stderr.count("\n")) == (2, 1)
    assert done.exit_code == 0
    for answer in (refused, several, done):
        assert not set(answer.output) & set("\x1b\x07\u202e")
        assert KEY not in answer.output


@pytest.mark.parametrize("misdeed", [Misdeed(reset=20), Misdeed(cut=30), Misdeed(status=500)])
def test_a_server_that_breaks_is_one_line_and_leaves_no_suite(serve, tmp_path, misdeed):
    suite = tmp_path / "probed.yaml"
    with serve(fail=Script(always=misdeed)) as server:
        done = invoke("probe", server.url, "--suite", str(suite))
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert "no route answers" in done.stderr
    assert not suite.exists()


def test_options_of_a_suite_need_a_file_that_is_new(tmp_path):
    here = tmp_path / "probed.yaml"
    here.write_text("mine")
    assert invoke("probe", "http://127.0.0.1:9/v1", "--target", "bundled:target").exit_code == 2
    assert invoke("probe", "http://127.0.0.1:9/v1", "--suite", str(here)).exit_code == 2
    assert here.read_text() == "mine"


def contract(server, *more):
    done = invoke("probe", server.url, "--contract", "--json", *more)
    return done, {row["expectation"]: row["result"] for row in json.loads(done.stdout)["contract"]}


def test_the_contract_of_a_sound_server_holds(serve):
    with serve(gamma=3) as server:
        done, found = contract(server)
        shown = invoke("probe", server.url, "--contract")
    assert (done.exit_code, shown.exit_code) == (0, 0), done.stderr
    assert set(found.values()) == {"holds"}
    assert {"one name", "own lists", "fields in stream", "token ids", "drafts per answer", "min_p"} <= set(found)
    assert "does not hold" not in shown.stdout
    assert "surface_parity holds a token against its own list" in shown.stdout


OWN_FAULTS = {
    "logprobs": {"scores": False},
    "token ids": {"fail": Script(always=Misdeed(swap=('"output_ids"', '"ids"'), times=-1))},
}


@pytest.mark.parametrize("fault", [None, *OWN_FAULTS])
def test_the_contract_of_sglangs_own_route(serve, fault):
    with serve(gamma=3, handler=NativeHandler, **OWN_FAULTS.get(fault, {})) as server:
        done, found = contract(server, "--own-route")
    assert {name for name, result in found.items() if result == "does not hold"} == ({fault} if fault else set())
    assert {"generate", "token ids", "prompt as ids", "top_k", "min_p", "one name", "drafts per answer"} <= set(found)
    assert "chat" not in found
    assert done.exit_code == (1 if fault else 0), done.output


UNSCORED = Misdeed(swap=('"delta": {"role"', '"logprobs": null, "delta": {"role"'), times=-1)
BROKEN = {
    "one name": {"fail": Script(always=Misdeed(swap=('"model": "bundled"', '"model": "other"'), times=-1))},
    "own lists": {"told": lambda values: [value - 1.0 for value in values]},
    "fields in stream": {"fail": Script(always=UNSCORED)},
    "logprobs": {"scores": False},
    "token ids": {"ids": False},
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_expectation_that_does_not_hold_is_named(serve, name):
    with serve(gamma=3, **BROKEN[name]) as server:
        done, found = contract(server)
    assert done.exit_code == 1
    assert found[name] == "does not hold"
