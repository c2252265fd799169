"""Evaluations of lm-evaluation-harness and Inspect through their plug-ins; runs in `make test-attach`.

Every sample names its record, and `audit show` draws it.
"""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from audit.store import Store
from engine.core.types import Role
from tests.audit.invoke import invoke

pytestmark = [pytest.mark.attach, pytest.mark.filterwarnings("ignore")]

PAIR = {"model": "bundled:target", "draft": "bundled:draft"}
QUESTIONS = ("The black ladder", "Use create_event with", "I can't help", "Once upon a time")
GENERATION = """\
task: written
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/data.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{max_gen_toks: 24, until: ["zzz"], do_sample: {sampled}, temperature: {temperature}}}
metric_list: [{{metric: exact_match}}]
repeats: {repeats}
"""
CHOICE = """\
task: chosen
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/data.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: [" a silver book", " of it"]
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""


def task_of(folder: Path, text: str, **values) -> dict:
    """Arguments of the harness for one local task."""
    from lm_eval.tasks import TaskManager

    rows = [json.dumps({"q": question, "a": " none"}) for question in QUESTIONS]
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "task.yaml").write_text(text.format(folder=folder, **values))
    return {"task_manager": TaskManager(include_path=str(folder), include_defaults=False)}


def harness(folder: Path, task: str, text: str, options: dict, **values) -> dict:
    """What the harness returns for a task, with a model that is closed again."""
    import lm_eval

    from audit.serve.evaluations.lm_eval_model import SpecauditLM

    model = SpecauditLM(**PAIR, store=str(folder / "audit.db"), **options)
    try:
        return lm_eval.simple_evaluate(model=model, tasks=[task], **task_of(folder, text, **values))
    finally:
        model.close()


def shown(folder: Path, request: str) -> dict:
    """The record of a request, as `audit show` prints it."""
    done = invoke("show", request, "--json", "--store", str(folder / "audit.db"))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def names_of(sample: dict) -> list[list[dict]]:
    """The records of a sample of the harness, by its requests."""
    return [arguments[-1]["audit"] for arguments in sample["arguments"]]


def test_answers_of_the_harness_are_records_with_drafts(tmp_path):
    off, on = (
        harness(tmp_path, "written", GENERATION, {"speculation": word}, sampled="false", temperature=0, repeats=1)
        for word in ("off", "on")
    )
    audit = on["config"]["audit"]
    with Store.open(str(tmp_path / "audit.db"), create=False, read_only=True) as store:
        assert str(store.run_status(audit["run"])) == "finished"
        record = store.load_arm(audit["run"], audit["arm"])
    assert len(record.requests) == len(on["samples"]["written"]) == len(QUESTIONS)
    assert any((request.trace.role == Role.ACCEPTED).any() for request in record.requests)
    for plain, sample in zip(off["samples"]["written"], on["samples"]["written"], strict=True):
        ((name,),) = names_of(sample)
        assert (name["run"], name["arm"]) == (audit["run"], audit["arm"])
        assert shown(tmp_path, name["request"])["text"] == sample["resps"][0][0] == plain["resps"][0][0]


def test_repeats_are_records_of_their_own(tmp_path):
    results = harness(tmp_path, "written", GENERATION, {}, sampled="true", temperature=1.0, repeats=3)
    for sample in results["samples"]["written"]:
        (names,) = names_of(sample)
        texts = [shown(tmp_path, name["request"])["text"] for name in names]
        assert texts == sample["resps"][0]
        assert len(set(texts)) == 3


def test_log_likelihoods_are_the_targets_own(tmp_path):
    import lm_eval

    results = harness(tmp_path, "chosen", CHOICE, {})
    model = {"pretrained": str(Path(__file__).parents[2] / "engine" / "bundled" / "target"), "dtype": "float32"}
    other = lm_eval.simple_evaluate(
        model="hf", model_args=model, tasks=["chosen"], device="cpu", **task_of(tmp_path, CHOICE)
    )
    assert results["results"]["chosen"]["acc,none"] == other["results"]["chosen"]["acc,none"]
    for sample, known in zip(results["samples"]["chosen"], other["samples"]["chosen"], strict=True):
        for own, theirs in zip(sample["filtered_resps"], known["filtered_resps"], strict=True):
            assert own[0] == pytest.approx(theirs[0], abs=1e-3)
            assert own[1] == theirs[1]
        for names in names_of(sample):
            assert names[0]["arm"] == results["config"]["audit"]["scoring_arm"]
            assert {token["role"] for token in shown(tmp_path, names[0]["request"])["tokens"]} == {"plain"}


def test_outputs_of_inspect_are_records(tmp_path):
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.log import read_eval_log
    from inspect_ai.model import get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    samples = [Sample(id=number, input=text, target="none") for number, text in enumerate(QUESTIONS)]
    task = Task(dataset=samples, solver=generate(), scorer=includes())
    options = {"draft": "bundled:draft", "store": str(tmp_path / "audit.db")}
    texts = {}
    for word in ("off", "on"):
        model = get_model("specaudit/bundled:target", memoize=False, speculation=word, **options)
        (log,) = evaluate(
            task, model=model, log_dir=str(tmp_path / word), display="none", max_tokens=24, temperature=1, epochs=2
        )
        model.api.recorded.close()
        kept = read_eval_log(log.location)
        assert kept.status == "success"
        assert len(kept.samples) == 2 * len(QUESTIONS)
        texts[word] = {}
        for sample in kept.samples:
            name = sample.output.metadata["audit"]
            assert name["request"] == sample.output.response_id
            assert shown(tmp_path, name["request"])["text"] == sample.output.completion
            texts[word].setdefault(sample.id, set()).add(sample.output.completion)
    # the same seeds: what is drafted changes no answer
    assert texts["on"] == texts["off"]
    assert all(len(answers) == 2 for answers in texts["on"].values())


def test_both_plug_ins_are_entry_points():
    found = {group: entry_points(group=group)["specaudit"].load() for group in ("lm_eval.models", "inspect_ai")}
    assert found["lm_eval.models"].__name__ == "SpecauditLM"
    assert found["inspect_ai"].__name__ == "audit.serve.evaluations.inspect_provider"
