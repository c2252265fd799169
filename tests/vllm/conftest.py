"""One engine per head and one without, each started when the first test asks for it and over when it has answered."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.tools.export_mimo import export

from . import setting
from .setting import REFERENCE, Case, serve

HERE = Path(__file__).parent
LONGEST = {HERE / name for name in ("test_suites.py", "test_repaired.py", "test_plan.py", "test_structured_suites.py")}


def pytest_collection_modifyitems(items):
    """The files that take longest begin, so that both processes end at about the same time."""
    items.sort(key=lambda item: item.path not in LONGEST)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def prompts():
    return setting.prompts()


@pytest.fixture(scope="session")
def mimo(tmp_path_factory):
    """The bundled target and its module, as vLLM reads them."""
    out = tmp_path_factory.mktemp("vllm") / "mimo"
    export("bundled:target", "bundled:mtp", out)
    return out


@pytest.fixture(scope="session")
def cases(mimo):
    """The bundled folders as they are, and the exported one."""
    return {
        "eagle": Case("eagle", "EagleLlamaForCausalLM", REFERENCE / "eagle"),
        "eagle3": Case("eagle3", "Eagle3LlamaForCausalLM", REFERENCE / "eagle3"),
        "medusa": Case("medusa", "Medusa", REFERENCE / "medusa"),
        "mtp": Case("mtp", "MiMoMTP", mimo),
    }


@pytest.fixture(scope="session")
def plain(prompts, tmp_path_factory):
    """Without a head."""
    return serve(tmp_path_factory.mktemp("plain"), prompts, REFERENCE / "target")


@pytest.fixture(scope="session", params=["eagle", "eagle3", "medusa", "mtp"])
def case(request, cases):
    return cases[request.param]


@pytest.fixture(scope="session")
def served(case, prompts, tmp_path_factory):
    return serve(tmp_path_factory.mktemp(case.kind), prompts, case.target, case.speculative)


SPREAD = """
import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()
print(rejection_sampler.expand_batch_to_tokens(torch.tensor([0.5, 2.0]), torch.tensor([2, 5]), 5).tolist())
"""


@pytest.fixture(scope="session")
def spread_is_defective():
    """Whether parameters are spread over drafted rows into a copy: asked of the function, not of the version.

    In a process of its own: vLLM reads every loaded module, and this one has some that it cannot read.
    """
    done = subprocess.run([sys.executable, "-c", SPREAD], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1] != "[0.5, 0.5, 2.0, 2.0, 2.0]"
