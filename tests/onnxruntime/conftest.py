"""The bundled models, converted once by the engine's own builder."""

import sys

import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.onnxruntime_genai.backend import OrtBackend
from engine.backends.onnxruntime_genai.convert import CONVERTER
from engine.backends.process.convert import convert
from engine.models.loading import open_source

SOURCES = {"target": "bundled:target", "draft": "bundled:medium_draft"}


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    out = tmp_path_factory.mktemp("onnx")
    return {
        name: convert(CONVERTER, open_source(source), sys.executable, out / name) for name, source in SOURCES.items()
    }


@pytest.fixture(scope="session")
def onnx(converted):
    """The setting that names them."""
    return {"onnx": {name: str(each.folder) for name, each in converted.items()}, "threads": 1}


@pytest.fixture(scope="session")
def backend():
    opened = OrtBackend({name: ModelSource(source) for name, source in SOURCES.items()})
    yield opened
    opened.close()
