"""Servers over the bundled target, alone and with a draft."""

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
