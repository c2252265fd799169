"""The first suite for a model: what it says, what it refuses, and that a run of it decides."""

from __future__ import annotations

import json
import shutil

import pytest

from audit.suite.loader import load_suite
from engine.models.files.folder import bundled_folder
from tests.audit.invoke import invoke

pytestmark = pytest.mark.medium
ROWS = '{"id": "1", "prompt": "the sea"}\n{"id": "2", "prompt": "a dog"}\n'


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Copies of the bundled pair, a target without a template, and a draft of another tokenizer."""
    monkeypatch.chdir(tmp_path)
    for name in ("target", "draft"):
        shutil.copytree(bundled_folder(f"bundled:{name}"), tmp_path / "models" / name)
    plain, other = tmp_path / "models/plain", tmp_path / "models/other"
    for folder, source in ((plain, "target"), (other, "draft")):
        shutil.copytree(tmp_path / "models" / source, folder)
    settings = json.loads((plain / "tokenizer_config.json").read_text())
    (plain / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": None}))
    (plain / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"][:2] = tokenizer["model"]["merges"][1::-1]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "rows.jsonl").write_text(ROWS)
    (tmp_path / "chats.jsonl").write_text('{"id": "1", "messages": [{"role": "user", "content": "Hello"}]}\n')
    return tmp_path / "models"


def test_a_suite_of_packaged_prompts(models, tmp_path):
    result = invoke("init", "models/target", "--draft", "models/draft")
    assert result.exit_code == 0, result.stderr
    assert "audit run target.yaml" in result.stdout
    suite = load_suite("target.yaml")
    assert {name: (tmp_path / source.source).resolve() for name, source in suite.models.items()} == {
        name: (models / name).resolve() for name in ("target", "draft")
    }
    assert [arm.proposer.kind for arm in suite.arms] == ["draft_model", "draft_model"]
    assert len(suite.cases) == 24
    assert (tmp_path / "target.yaml").read_text().startswith("# target: llama, ")


def test_paths_are_those_of_the_suites_folder(models, tmp_path):
    (tmp_path / "suites").mkdir()
    result = invoke("init", str(models / "plain"), "--prompts", "rows.jsonl", "--out", "suites/own.yaml")
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "suites/own.yaml").read_text()
    assert '"../models/plain"' in text
    assert '"../rows.jsonl"' in text
    suite = load_suite("suites/own.yaml")
    assert [case.prompt for case in suite.cases] == ["the sea", "a dog"]
    assert suite.samples * len(suite.cases) * 64 >= 2500 > (suite.samples - 1) * len(suite.cases) * 64


def test_any_name_of_a_file_and_of_a_model_type_gives_a_suite(models):
    config = json.loads((models / "plain/config.json").read_text())
    (models / "plain/config.json").write_text(json.dumps(config | {"model_type": "llama\nversion: 9"}))
    result = invoke("init", "models/plain", "--prompts", "rows.jsonl", "--out", "my plain model.yaml")
    assert result.exit_code == 0, result.stderr
    assert load_suite("my plain model.yaml").name == "my-plain-model"


def test_the_names_of_bundled_models_stay(models):
    assert invoke("init", "bundled:target", "--draft", "bundled:draft").exit_code == 0
    assert load_suite("target.yaml").models["draft"].source == "bundled:draft"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["models/none"], "models/none"),
        (["models/target", "--draft", "models/other"], "models/other cannot draft for models/target: merge 0 is"),
        (["models/plain"], "models/plain has no chat template, which the packaged prompts need; add --prompts FILE"),
        (["models/plain", "--prompts", "chats.jsonl"], "chats.jsonl: messages need a chat template, which"),
        (["models/target", "--prompts", "none.jsonl"], "none.jsonl"),
        (["small.gguf"], "small.gguf: no such folder; give a folder with config.json and safetensors, or a .gguf file"),
        (["http://localhost:8000"], "audit probe http://localhost:8000 --suite FILE"),
        (["models/target", "--out", "rows.jsonl"], "rows.jsonl: the file exists"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(models, tmp_path, arguments, line):
    before = sorted(tmp_path.iterdir())
    result = invoke("init", *arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "rows.jsonl").read_text() == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("draft", [[], ["--draft", "bundled:draft"]], ids=["ngram", "draft"])
def test_its_first_run_decides(models, draft):
    assert invoke("init", "bundled:target", *draft).exit_code == 0
    result = invoke("run", "target.yaml", "--store", "audit.db", "--results", "results.json")
    assert result.exit_code == 0, result.stdout
    assert "waive" not in result.stdout


@pytest.mark.slow
def test_its_first_run_fails_a_broken_engine(models, tmp_path):
    assert invoke("init", "bundled:target", "--draft", "bundled:draft").exit_code == 0
    path = tmp_path / "target.yaml"
    path.write_text(
        path.read_text().replace("    verifier: chain", "    verifier: chain\n    fault: accepts_everything")
    )
    assert invoke("run", "target.yaml", "--store", "audit.db", "--results", "results.json").exit_code == 1
