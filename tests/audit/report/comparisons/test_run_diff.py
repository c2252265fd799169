"""What differs between two runs: nothing between a run and its repetition, and each thing that was changed."""

from __future__ import annotations

import json

import pytest

from audit.api.running import Quiet
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.audit.runs.round_suites import suite_file

MORE = ", replay: {}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs by name: one suite twice, with another seed, with a fault, and with longer drafts."""
    folder = tmp_path_factory.mktemp("diff")
    url, names = str(folder / "audit.db"), {}
    with Store.open(url, create=True) as store:

        def made_run(change=lambda text: text, **options):
            path = suite_file(folder, more=MORE, **options)
            path.write_text(change(path.read_text()))
            return run(prepare(load_suite(path)), store, Quiet()).run

        names["first"], names["again"] = made_run(), made_run()
        names["seed"] = made_run(seed=6)
        names["broken"] = made_run(fault="accepts_everything")
        names["longer"] = made_run(lambda text: text.replace("gamma: 3", "gamma: 5"))
    return url, names


def differences(made, a, b):
    url, names = made
    result = invoke("diff", names[a], names[b], "--json", "--store", url)
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


def changed(found):
    return {each["place"]: (each["a"], each["b"]) for each in found["settings"]}


def test_a_repetition_differs_in_nothing(made):
    code, found = differences(made, "first", "again")
    assert code == 0
    assert (found["settings"], found["verdicts"], found["acceptance"]) == ([], [], [])
    assert found["same_content"] is True
    assert [(each["arm"], each["equal"], each["partings"]) for each in found["outputs"]] == [
        ("baseline/T=1", 6, []),
        ("chain", 6, []),
    ]


@pytest.mark.medium
def test_with_another_seed_no_request_is_the_same_work(made):
    code, found = differences(made, "first", "seed")
    assert code == 1
    assert found["same_content"] is False
    assert {each["unlike"] for each in found["outputs"]} == {6}
    assert changed(found)["arm chain.spec.sampling.seed"] == ("5", "6")
    assert not any(each["partings"] for each in found["outputs"])


def test_a_broken_engine_shows_its_setting_its_verdict_its_acceptance_and_its_outputs(made):
    code, found = differences(made, "first", "broken")
    assert code == 1
    assert changed(found)["arm chain.spec.fault"] == (None, "accepts_everything")
    verdicts = {each["place"]: (each["a"], each["b"]) for each in found["verdicts"]}
    assert verdicts["chain replay: verdict"][1] == "fault"
    rates = {each["part"]: (each["a"], each["b"]) for each in found["acceptance"] if each["arm"] == "chain"}
    assert {"domain words", "position 1", "position 3"} <= set(rates)
    before, after = rates["domain words"]
    assert after["accepted"] == after["drafted"]
    assert before["accepted"] < before["drafted"]
    outputs = {each["arm"]: each for each in found["outputs"]}
    assert outputs["baseline/T=1"]["partings"] == []
    parting, *_ = outputs["chain"]["partings"]
    assert parting["tokens"][0] != parting["tokens"][1]
    assert parting["words"].startswith("after ")


@pytest.mark.medium
def test_counts_of_acceptance_are_those_of_the_store(made):
    """Two ways to the same numbers: traces here, columns there."""
    _, found = differences(made, "first", "longer")
    url, names = made
    for side, name in (("a", "first"), ("b", "longer")):
        sql = "SELECT SUM(n_drafted), SUM(n_accepted) FROM v_request WHERE run = :run AND arm = 'chain'"
        rows = invoke("query", "--sql", sql, "--param", f"run={names[name]}", "--format", "csv", "--store", url)
        (part,) = [each for each in found["acceptance"] if each["part"] == "domain words"]
        assert rows.stdout.splitlines()[1] == f"{part[side]['drafted']},{part[side]['accepted']}"


@pytest.mark.medium
def test_the_page_names_what_differs(made):
    url, names = made
    result = invoke("diff", names["first"], names["broken"], "--most", "1", "--store", url, "--wide")
    lines = result.stdout.splitlines()
    assert lines[:2] == [f"a  {names['first']}", f"b  {names['broken']}"]
    assert any(line.split()[:2] == ["arm", "chain.spec.fault"] for line in lines)
    assert sum("leads" in line for line in lines) == 1
    assert any(line.startswith("  chain: ") and line.endswith("more; raise --most") for line in lines)
    assert lines[2] == "content  different"
    same = invoke("diff", names["first"], names["again"], "--store", url)
    assert "\ncontent  the same: " in same.stdout
    assert "settings: no difference" in same.stdout


def test_an_unknown_run_is_one_line(made):
    result = invoke("diff", "nonesuch", "latest", "--store", made[0])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("audit: ")
    assert result.stderr.count("\n") == 1
