"""Conversions: a manifest ties the result to its source, and nothing is left of one that fails."""

import json

import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.onnxruntime_genai.backend import OrtBackend
from engine.backends.onnxruntime_genai.convert import CONVERTER, compose, head_size
from engine.backends.process.convert import MANIFEST, convert, read_converted
from engine.core.errors import ModelError
from engine.models.loading import open_source

from .builders import BUILDER, REFUSING, write_program


@pytest.fixture
def program(tmp_path):
    return lambda text: write_program(tmp_path, text)


@pytest.fixture
def opened():
    return open_source("bundled:target")


def test_the_manifest_names_source_result_versions_and_rounding(opened, program, tmp_path):
    converted = convert(CONVERTER, opened, program(BUILDER), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["source"]["model_sha256"] == opened.facts["model_sha256"] == converted.source_sha256
    assert set(manifest["result"]["files"]) == {"model.onnx", "genai_config.json"}
    assert manifest["precision"] == "fp32"
    assert manifest["rounding"].startswith("none")
    assert read_converted(tmp_path / "out") == converted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "python"]


def test_a_changed_file_is_refused(opened, program, tmp_path):
    convert(CONVERTER, opened, program(BUILDER), tmp_path / "out")
    (tmp_path / "out" / "model.onnx").write_bytes(b"other")
    with pytest.raises(ModelError, match=r"model\.onnx: not the file that was converted"):
        read_converted(tmp_path / "out")
    with pytest.raises(ModelError, match="does not exist; convert the model"):
        read_converted(tmp_path)


def test_a_builder_that_fails_leaves_nothing(opened, program, tmp_path):
    with pytest.raises(ModelError, match="does not convert it: NotImplementedError: no such model"):
        convert(CONVERTER, opened, program(REFUSING), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["python"]


def test_a_head_size_that_the_engine_lacks_is_refused_before_anything_runs():
    with pytest.raises(ModelError, match="head size 24 is not a multiple of 16"):
        OrtBackend({"target": ModelSource("bundled:target"), "draft": ModelSource("bundled:draft")})
    assert head_size({"hidden_size": 64, "num_attention_heads": 4}) == 16
    assert head_size({}) is None


def test_the_composed_folder_links_both_models(opened, program, tmp_path):
    folder = convert(CONVERTER, opened, program(BUILDER), tmp_path / "out").folder
    home = tmp_path / "home"
    home.mkdir()
    compose(home, folder, folder, (0,), 2)
    config = json.loads((home / "genai_config.json").read_text())["model"]
    assert (config["decoder"]["filename"], config["draft"]["filename"]) == ("target/model.onnx", "draft/model.onnx")
    assert config["draft"]["session_options"] == {"intra_op_num_threads": 2}
    with pytest.raises(ModelError, match=r"ends at tokens \[0\], but the target at \[3\]"):
        compose(tmp_path / "other", folder, None, (3,), None)
