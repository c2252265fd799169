"""One engine's memory: its processes, its cache, the weights of target and draft."""

import pytest

from engine.backends.vllm.driver import GIB, PROCESSES, needed, require_memory


@pytest.fixture
def arguments(tmp_path):
    for name, size in (("target", 3000), ("draft", 500)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(size))
    draft = {"method": "draft_model", "model": str(tmp_path / "draft")}
    return {"model": str(tmp_path / "target"), "kv_cache_memory_bytes": GIB, "speculative_config": draft}


def test_an_engine_takes_its_processes_its_cache_and_all_weights(arguments):
    assert needed(arguments) == PROCESSES + GIB + 3500
    assert needed({**arguments, "speculative_config": None}) == PROCESSES + GIB + 3000
    assert needed({**arguments, "speculative_config": {"model": "package.module.Class"}}) == PROCESSES + GIB + 3000


def test_an_engine_that_does_not_fit_is_one_line_with_the_setting_to_change(arguments):
    require_memory(arguments, needed(arguments))
    with pytest.raises(MemoryError, match=r"needs 2\.6 GiB of memory, 1\.0 GiB are free; write a smaller"):
        require_memory(arguments, GIB)
