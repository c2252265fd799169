"""`cancel_beside`: which suites may ask for neighbours that are cancelled, and what they get."""

from __future__ import annotations

import json

import pytest

from audit.errors import UserError
from audit.suite.loader import load_suite
from engine.backends import REGISTRY

SAMPLING = {"temperature": 0.5, "max_new_tokens": 8}


def suite(folder, backend, **arm):
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "abc"}\n')
    served = backend == "openai"
    models = {"target": "served:m"} if served else {"target": "scripted:1", "draft": "scripted:2"}
    proposer = {"kind": "served", "gamma": 3} if served else {"kind": "draft_model", "model": "draft", "gamma": 3}
    document = {
        "version": 1,
        "name": "cancelled",
        "backend": backend,
        "models": models,
        **({"engine": {"url": "http://127.0.0.1:1/v1"}} if served else {}),
        "workloads": [{"name": "w", "prompts": "prompts.jsonl"}],
        "arms": [{"name": "a", "proposer": proposer, "verifier": "chain", "sampling": SAMPLING, **arm}],
    }
    path = folder / "suite.yaml"
    path.write_text(json.dumps(document))
    return path


def test_the_built_in_engine_gets_contrasting_neighbours_and_a_service_ones_that_it_can_serve(tmp_path):
    (ours,) = load_suite(suite(tmp_path, "scripted", cancel_beside=3)).arms
    assert ours.cancel_beside == 3
    assert ours.beside.greedy
    (served,) = load_suite(suite(tmp_path, "openai", cancel_beside=3)).arms
    assert served.beside == served.sampling
    (own,) = load_suite(suite(tmp_path, "scripted", cancel_beside=3, beside={"temperature": 1.5})).arms
    assert own.beside.temperature == 1.5


@pytest.mark.parametrize("backend", sorted(name for name, kind in REGISTRY.items() if not kind.cancels))
def test_an_engine_that_cannot_cancel_is_refused(tmp_path, backend):
    path = suite(tmp_path, backend, cancel_beside=3)
    path.write_text(path.read_text().replace("scripted:1", "bundled:target").replace("scripted:2", "bundled:draft"))
    with pytest.raises(UserError, match=f"backend {backend} cannot cancel a request; remove it"):
        load_suite(path)


def test_no_neighbour_is_cancelled_before_its_first_token(tmp_path):
    with pytest.raises(UserError, match="cancel_beside is 0; write"):
        load_suite(suite(tmp_path, "scripted", cancel_beside=0))
