"""DiFR's form of an arm: the ids of the record, one entry per case, and no text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from audit.report.difr_file import samples_of
from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.store.build import erase_first, fill_finished


@pytest.fixture
def run(any_url):
    with Store.open(any_url, create=True) as store:
        return fill_finished(store)


@pytest.mark.medium
def test_the_file_has_the_tokens_of_the_record(any_url, run, tmp_path):
    out = tmp_path / "spec.json"
    done = invoke("export", run, "--format", "difr", "--arm", "spec", "--out", str(out), "--store", any_url)
    assert done.exit_code == 0, done.output
    written = json.loads(out.read_text())
    with Store.open(any_url, create=False, read_only=True) as store:
        requests = store.load_arm(run, "spec").requests
        expected = {}
        for request in requests:
            answers = expected.setdefault(request.case_id, (list(request.trace.header.prompt), []))[1]
            answers.append({"token_ids": list(request.tokens)})
        texts = {request.text for request in requests}
    assert written["samples"] == [{"prompt_token_ids": ids, "outputs": outputs} for ids, outputs in expected.values()]
    assert {"run", "arm", "temperature", "seed"} <= set(written["config"])
    assert not any(text and text in out.read_text() for text in texts)


@pytest.mark.medium
def test_repetitions_of_a_case_are_answers_to_one_prompt(any_url, run):
    with Store.open(any_url, create=False, read_only=True) as store:
        first, second, *_ = store.load_arm(run, "spec").requests
        found = list(samples_of([first, replace(first, sample=1), second]))
    assert [len(each["outputs"]) for each in found] == [2, 1]
    assert found[0]["outputs"][0] == found[0]["outputs"][1] == {"token_ids": list(first.tokens)}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--format", "difr"), "belong together"),
        (("--format", "bundle", "--arm", "spec"), "belong together"),
        (("--format", "difr", "--arm", "other"), "it has: base, spec"),
    ],
)
def test_a_wrong_call_is_one_line(any_url, run, tmp_path, options, says):
    done = invoke("export", run, *options, "--out", str(tmp_path / "x.json"), "--store", any_url)
    assert (done.exit_code, says in done.stderr, done.stderr.count("\n")) == (2, True, 1)
    assert list(tmp_path.glob("x.json")) == []


@pytest.mark.medium
def test_an_erased_answer_is_not_exported(any_url, run, tmp_path):
    erase_first(any_url)
    done = invoke(
        "export", run, "--format", "difr", "--arm", "base", "--out", str(tmp_path / "x.json"), "--store", any_url
    )
    assert (done.exit_code, list(tmp_path.glob("x.json"))) == (3, [])
