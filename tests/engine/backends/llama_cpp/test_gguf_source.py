"""A GGUF file as source: the server loads it as it is."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.llama_cpp.backend import LlamaBackend
from engine.backends.llama_cpp.settings import settings_of
from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import Protocol
from engine.models.files.folder import bundled_folder
from engine.models.loading import open_source

pytest.importorskip("gguf")


@pytest.fixture
def file(tmp_path, monkeypatch):
    from engine.backends.llama_cpp.build import build

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build(bundled_folder("bundled:draft"), tmp_path / "made")
    return shutil.move(tmp_path / "made" / "model.gguf", tmp_path / "small.gguf")


def test_the_file_itself_is_loaded(file):
    backend = LlamaBackend({"target": ModelSource(str(file))})
    settings = settings_of(EngineSpec(Protocol.GREEDY, None, 0))
    for _ in range(2):
        loaded = backend.model("target", settings)
        assert (loaded.folder / "model.gguf").resolve() == file
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert loaded.source_sha256 == open_source(str(file)).facts["model_sha256"]
    assert loaded.identity()["rounding"].startswith("the file's own")
    backend.close()
    assert not loaded.folder.exists()
    assert file.is_file()


@pytest.mark.parametrize("rule", [Protocol.GREEDY, Protocol.GUMBEL])
def test_drafts_that_promise_plains_tokens_are_refused(file, rule):
    backend = LlamaBackend({"target": ModelSource(str(file))})
    with pytest.raises(InvalidRequest, match=r"small.gguf: with rounded weights .* use verifier: chain, or convert"):
        backend.arm(EngineSpec(rule, "ngram_simple", 4))
    assert backend.arm(EngineSpec(Protocol.CHAIN, "ngram_simple", 4)).rule is Protocol.CHAIN
    assert backend.arm(EngineSpec(rule, None, 0)).rule is rule
    backend.close()


def test_a_folder_that_is_named_must_still_be_the_models(file, tmp_path):
    backend = LlamaBackend({"target": ModelSource(str(file))})
    named = EngineSpec(Protocol.GREEDY, None, 0, engine={"gguf": {"target": str(tmp_path)}})
    with pytest.raises(ModelError, match=r"conversion.json: does not exist"):
        backend.model("target", settings_of(named))
    backend.close()
