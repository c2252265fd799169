"""`audit eval` on real tasks of lm-evaluation-harness and Inspect; runs in `make test-attach`."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from audit.store import Store
from tests.attach.transcripts import STARTING_POINT
from tests.audit.invoke import invoke

pytestmark = [pytest.mark.attach, pytest.mark.filterwarnings("ignore")]
RUN = re.compile(r"runs: off (?P<off>\w{26}), on \w{26}, control (?P<control>\w{26})")
PAIR = ("bundled:target", "--draft", "bundled:draft")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with local tasks of both harnesses."""
    shutil.copytree(STARTING_POINT, tmp_path, dirs_exist_ok=True)
    rows = [json.dumps({"q": f"{number} black ladders and", "a": "2"}) for number in range(16)]
    (tmp_path / "questions.jsonl").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def documented(*arguments: str) -> dict:
    """What the command says as JSON; nothing may be a fault."""
    done = invoke("eval", *arguments, "--store", "audit.db", "--json")
    assert done.exit_code in (0, 3), done.output
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.exit_code
    verdicts = {judged["check"]: judged["result"]["verdict"] for judged in found["answers"]["judged"]}
    assert verdicts["accounting"] == "certified"
    assert (found["answers"]["changed"], found["answers"]["unpaired"], found["unseen"]) == ([], 0, 0)
    return found


def test_the_harness_runs_twice_and_scores_are_paired(folder):
    found = documented("lm-eval", *PAIR, "--task", "arithmetic", "--include-path", ".", "--out", "out")
    (score,) = found["scores"]
    assert (score["task"], score["metric"], score["samples"]) == ("arithmetic", "exact_match,none", 16)
    assert score["interval"]["low"] < score["difference"] == 0 < score["interval"]["high"]
    assert found["answers"]["pairs"] == 16
    for word in ("off", "on"):
        (results,) = (folder / "out" / word).rglob("results_*.json")
        assert json.loads(results.read_text())["config"]["audit"]["run"] == found[word]["run"]
    with Store.open("audit.db", create=False, read_only=True) as store:
        assert store.load_run(found["off"]["run"]).arms[0].spec["gamma"] == 0


def test_inspect_runs_twice_and_scores_are_paired(folder):
    given = ("--task", "arithmetic.py", "--max-tokens", "16", "--epochs", "4", "--temperature", "1")
    found = documented("inspect", *PAIR, *given)
    (score,) = found["scores"]
    assert (score["task"], score["metric"], score["samples"]) == ("arithmetic", "includes", 2)
    assert found["answers"]["pairs"] == 8
    assert len([*(folder / "logs").rglob("*.eval")]) == 2


def test_a_control_of_the_harness_is_plain_decoding_twice(folder):
    given = ("--task", "arithmetic", "--include-path", ".", "--limit", "6", "--out", "out", "--seed", "7")
    found = documented("lm-eval", *PAIR, *given, "--control")
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["control", "off", "on"]
    (score,), (twice,) = found["scores"], found["control"]["scores"]
    # greedy answers: other seeds change nothing, so the two plain evaluations are equal
    assert (twice["samples"], twice["off"], twice["difference"]) == (6, score["off"], 0)
    runs = [found["off"], found["control"]["arm"], found["on"]]
    with Store.open("audit.db", create=False, read_only=True) as store:
        gammas = [store.load_run(each["run"]).arms[0].spec["gamma"] for each in runs]
    assert gammas[:2] == [0, 0]
    assert gammas[2] > 0
    assert len({each["run"] for each in runs}) == 3


def test_a_control_of_inspect_draws_other_numbers(folder):
    given = ("--task", "arithmetic.py", "--max-tokens", "16", "--epochs", "4", "--temperature", "1", "--control")
    done = invoke("eval", "inspect", *PAIR, *given, "--store", "audit.db")
    assert done.exit_code in (0, 3), done.output
    assert "off again minus off, under other seeds" in done.stdout
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["control", "off", "on"]
    off, control = (RUN.search(done.stdout)[name] for name in ("off", "control"))
    with Store.open("audit.db", create=False, read_only=True) as store:
        texts = [
            [request.text for request in store.load_arm(run, store.load_run(run).arms[0].name).requests]
            for run in (off, control)
        ]
    assert len(texts[0]) == len(texts[1]) == 8
    assert texts[0] != texts[1]


def test_an_unknown_task_is_named(folder):
    done = invoke("eval", "lm-eval", *PAIR, "--task", "nothing_such", "--include-path", ".", "--store", "audit.db")
    assert done.exit_code == 2
    assert "--task nothing_such: the harness knows no such task" in done.stderr
