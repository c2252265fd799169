"""The bundled models for one engine, converted once, and its opened backend."""

import sys

import pytest

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.process.convert import convert
from engine.core.registry import CONVERTERS, resolve
from engine.core.types import Protocol, SamplingParams
from engine.models.loading import open_source

from .engines import generated


@pytest.fixture(scope="session")
def engine(request):
    """The engine that a test is about."""
    return request.param


@pytest.fixture(scope="session")
def converted(engine, tmp_path_factory):
    out, converter = tmp_path_factory.mktemp(engine.format), resolve(CONVERTERS, engine.format, "format")
    return {
        name: convert(converter, open_source(source), sys.executable, out / name)
        for name, source in engine.sources.items()
    }


@pytest.fixture(scope="session")
def mlx_python(pytestconfig):
    """The interpreter that has mlx_lm."""
    return pytestconfig.getoption("--mlx-python")


@pytest.fixture(scope="session")
def engine_settings(engine, request):
    if engine.format is None:
        return {"python": request.getfixturevalue("mlx_python")}
    folders = request.getfixturevalue("converted")
    return {engine.format: {name: str(model.folder) for name, model in folders.items()}, "threads": 1}


@pytest.fixture(scope="session")
def backend(engine):
    opened = open_backend(engine.name, {name: ModelSource(source) for name, source in engine.sources.items()})
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def arm(engine, backend, engine_settings):
    def opened(name, protocol=Protocol.GREEDY, rows=1, level=None, **more):
        named = engine.arms[name] | ({} if level is None else {"level": level})
        return backend.arm(EngineSpec(protocol, rows=rows, engine={**engine_settings, **more}, **named))

    return opened


@pytest.fixture(scope="session")
def plain(arm):
    return generated(arm("plain"), SamplingParams(max_new_tokens=32))
