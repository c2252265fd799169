"""The bundled models, converted once."""

import sys

import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.openvino_genai.backend import OpenVinoBackend
from engine.backends.openvino_genai.convert import CONVERTER
from engine.backends.process.convert import convert
from engine.models.loading import open_source

SOURCES = {"target": "bundled:target", "draft": "bundled:medium_draft"}


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    out = tmp_path_factory.mktemp("openvino")
    return {
        name: convert(CONVERTER, open_source(source), sys.executable, out / name) for name, source in SOURCES.items()
    }


@pytest.fixture(scope="session")
def engine_settings(converted):
    return {"openvino": {name: str(model.folder) for name, model in converted.items()}, "threads": 1}


@pytest.fixture(scope="session")
def backend():
    opened = OpenVinoBackend({name: ModelSource(source) for name, source in SOURCES.items()})
    yield opened
    opened.close()
