"""Servers over the bundled target, alone and with a draft."""

import shutil

import pytest
import torch

from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from engine.backends.native.backend import open_models
from tests.http.server import serving


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def backend():
    return open_models({name: ModelSource(f"bundled:{name}") for name in ("target", "draft")})


@pytest.fixture(scope="session")
def decode():
    return LocalTarget(ModelSource("bundled:target")).tokens.decode


@pytest.fixture
def serve(backend, decode):
    """Makes servers; `gamma` 0 is one that does not speculate."""

    def make(gamma=0, **settings):
        return serving(backend, decode, gamma, **settings)

    return make


@pytest.fixture(scope="session")
def thinking(tmp_path_factory):
    """A model folder whose template adds words unless it is told not to think, as Qwen3's does."""
    folder = tmp_path_factory.mktemp("models") / "thinking"
    shutil.copytree(LocalTarget(ModelSource("bundled:target")).folder, folder)
    path = folder / "chat_template.jinja"
    path.write_text(
        path.read_text().rstrip()
        + "{% if enable_thinking is not defined or enable_thinking %}Let me think about it again and again.{% endif %}"
    )
    return folder
