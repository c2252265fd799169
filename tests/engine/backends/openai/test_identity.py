"""The kind of a server, by what its pages say."""

from __future__ import annotations

import pytest

from engine.backends.openai.facts import EndpointFacts
from engine.backends.openai.probing import ServerPages, identify
from engine.backends.openai.settings import DIALECTS


def pages(owner="", metrics="", properties=None, fingerprint="", version=None):
    facts = EndpointFacts("m", {"id": "m", "owned_by": owner}, version=version)
    return ServerPages(facts, metrics, properties or {}, fingerprint)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"owner": "vllm", "metrics": "vllm:num_requests_running 0\n", "version": "0.32.0"}, "vllm"),
        ({"metrics": "# HELP sglang:x\nsglang:num_running_reqs 0\nvllm:spec_decode_num_drafts_total 3\n"}, "sglang"),
        ({"properties": {"default_generation_settings": {}}, "metrics": "vllm:spec_decode_x 0\n"}, "llama.cpp"),
        ({"owner": "llamacpp"}, "llama.cpp"),
        ({"fingerprint": "0.32.2-0.32.4-Linux-6.1-x86_64"}, "mlx-lm"),
        ({"owner": "tensorrt_llm"}, "tensorrt-llm"),
    ],
)
def test_each_kind_by_its_strongest_mark(given, kind):
    found = identify(pages(**given))
    assert (found.kind, found.product) == (kind, kind)
    assert found.why
    assert kind in DIALECTS


def test_a_server_without_marks_is_of_no_kind():
    found = identify(pages(owner="someone", metrics="http_requests_total 3\n", fingerprint="fp_44709d6fcb"))
    assert (found.kind, found.product, found.version, found.why) == ("openai", "unknown", None, ())


def test_a_mention_of_metrics_is_no_mark():
    assert identify(pages(metrics="# vllm: is not here\n")).kind == "openai"
