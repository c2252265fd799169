import pytest
import torch

from tests.engine.backends.transformers import family


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return family.make(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="session")
def backend(home):
    return family.workshop_of(home, "draft", "other")
