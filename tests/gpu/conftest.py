"""These tests need a GPU with CUDA; `make test-gpu` says so where there is none."""

import pytest
import torch

HERE = "cuda"


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "tests/gpu/" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="needs a GPU with CUDA, and this machine has none"))


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def device():
    return HERE
