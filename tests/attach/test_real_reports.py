"""Reports that lm-evaluation-harness, Inspect and MLflow write themselves; runs in `make test-attach`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit.attach.interface import load_format
from audit.store.base import keys
from audit.suite.loader import load_suite
from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke

pytestmark = [pytest.mark.attach, pytest.mark.filterwarnings("ignore")]

DIFFERS = ("--model-differs", "a stand-in answers")


@pytest.fixture
def url(tmp_path: Path) -> str:
    keys.init(tmp_path / "k", "example.org/audit")
    return stored_run(tmp_path)


def attach(url: str, folder: Path, report: str, *more: str):
    done = invoke("attach", "latest", report, "--key", str(folder / "k"), "--store", url, *more)
    assert done.exit_code == 0, done.output


def verify(url: str, folder: Path, report: str) -> int:
    return invoke("verify", report, "--key", str(folder / "k.pub"), "--store", url).exit_code


def traffic(path: str | Path, form: str, **more):
    """The cases of a suite whose workload is the file."""
    document = {
        "version": 1,
        "name": "traffic",
        "backend": "scripted",
        "models": {"target": "scripted:1"},
        "workloads": [{"name": "w", "source": {"file": Path(path).name, "format": form, **more}}],
        "arms": [{"name": "a", "proposer": {"kind": "ngram", "gamma": 2}, "verifier": "greedy"}],
    }
    suite = Path(path).with_name("traffic.yaml")
    suite.write_text(json.dumps(document))
    cases = load_suite(suite).cases
    suite.unlink()
    return cases


def test_a_log_of_inspect_carries_the_evidence_and_keeps_its_samples(url, tmp_path):
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.log import list_eval_logs, read_eval_log
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    answer = ModelOutput.from_content("mockllm/model", "4")
    answer.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it downloads a tokenizer
    task = Task(
        dataset=[Sample(id=1, input="2+2", target="4", metadata={"topic": "sums"})],
        solver=generate(),
        scorer=includes(),
    )
    model, logs = get_model("mockllm/model", custom_outputs=[answer]), tmp_path / "logs"
    (made,) = evaluate(task, model=model, log_dir=str(logs), display="none")
    path = made.location.removeprefix("file://")
    (case,) = traffic(path, "inspect", columns={"domain": "metadata.topic"})
    assert (case.id, case.domain, list(case.messages)) == ("w/1", "sums", [{"role": "user", "content": "2+2"}])
    attach(url, tmp_path, path, "--in-place", *DIFFERS)
    log = read_eval_log(path)
    assert json.loads(log.metadata["audit"])["run"]
    assert [update.provenance.author for update in log.log_updates] == ["specaudit"]
    assert (log.samples[0].output.completion, log.eval.metadata) == ("4", None)
    assert [Path(item.name).name for item in list_eval_logs(str(logs))] == [Path(path).name]
    assert verify(url, tmp_path, path) == 0
    Path(path).write_bytes(Path(path).read_bytes() + b" ")
    assert verify(url, tmp_path, path) == 1


def test_results_and_samples_of_the_harness(url, tmp_path):
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    (tmp_path / "data.jsonl").write_text('{"q": "1+1", "a": "2"}\n{"q": "1+2", "a": "3"}\n')
    (tmp_path / "tiny.yaml").write_text(
        f"task: tiny\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/data.jsonl}}}}\n"
        "test_split: test\noutput_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
        "metric_list: [{metric: exact_match}]\n"
    )
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    tracker = EvaluationTracker(output_path=str(tmp_path / "out"))
    results = lm_eval.simple_evaluate(model="dummy", tasks=["tiny"], task_manager=tasks, evaluation_tracker=tracker)
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name="tiny", samples=samples["tiny"])
    written = sorted(path for path in (tmp_path / "out").rglob("*.json*") if path.is_file())
    assert [path.name.partition("_")[0] for path in written] == ["results", "samples"]
    cases = traffic(written[1], "lm_eval", columns={"domain": "doc.a"})
    assert [(case.id, case.prompt, case.domain) for case in cases] == [("w/0", "1+1", "2"), ("w/1", "1+2", "3")]
    for path, form in zip(written, ("lm_eval", "lm_eval_samples"), strict=True):
        assert load_format(form).recognises(path.name, path.read_bytes())
        attach(url, tmp_path, str(path), "--in-place", *(DIFFERS if form == "lm_eval" else ()))
        assert verify(url, tmp_path, str(path)) == 0
    assert sorted(path for path in written[0].parent.iterdir() if path.is_file()) == written
    written[0].write_bytes(written[0].read_bytes().replace(b'"tiny"', b'"tini"', 1))
    assert verify(url, tmp_path, str(written[0])) == 1


def test_a_run_of_mlflow_carries_the_statement(url, tmp_path):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/m.db")
    experiment = mlflow.create_experiment("x", artifact_location=f"file://{tmp_path}/art")
    with mlflow.start_run(experiment_id=experiment) as run:
        mlflow.log_params({"gamma": 4})
        mlflow.log_metric("accuracy", 0.5)
        mlflow.log_text("hello", "f.txt")
    report, client = f"mlflow:{tmp_path}/m.db#{run.info.run_id}", mlflow.MlflowClient()
    attach(url, tmp_path, report)
    assert client.get_run(run.info.run_id).data.tags["audit.exit_code"] == "0"
    assert verify(url, tmp_path, report) == 0
    stored_run(tmp_path)
    attach(url, tmp_path, report)
    assert verify(url, tmp_path, report) == 0
    client.log_metric(run.info.run_id, "accuracy", 0.9)
    assert verify(url, tmp_path, report) == 1
