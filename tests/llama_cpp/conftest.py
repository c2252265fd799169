"""The bundled models, converted once, and an opened backend."""

import sys

import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.llama_cpp.backend import LlamaBackend
from engine.backends.llama_cpp.convert import CONVERTER
from engine.backends.process.convert import convert
from engine.models.loading import open_source

SOURCES = {"target": "bundled:target", "draft": "bundled:medium_draft"}


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    out = tmp_path_factory.mktemp("gguf")
    return {
        name: convert(CONVERTER, open_source(source), sys.executable, out / name) for name, source in SOURCES.items()
    }


@pytest.fixture(scope="session")
def engine_settings(converted):
    return {"gguf": {name: str(model.folder) for name, model in converted.items()}, "threads": 1}


@pytest.fixture(scope="session")
def backend():
    opened = LlamaBackend({name: ModelSource(source) for name, source in SOURCES.items()})
    yield opened
    opened.close()
