"""The numerics modes on a GPU: what the probe promises is held against the CPU's bits and against plain decoding's."""

import numpy as np
import pytest
import torch

from engine.core.errors import NumericsRefused
from engine.core.types import Protocol
from engine.models import numerics
from engine.models.decoder.lean import LeanModel
from engine.models.interface import WantedOutputs, chain_placement, to_numpy
from engine.models.loading import load_model
from engine.models.numerics.interface import Invariance
from tests.engine.numerics.bitwise import LENGTH, Case, compare, target

pytestmark = pytest.mark.gpu
DTYPES = ("float32", "bfloat16")
PROPOSERS = {"fixed": ("draft_model", "ngram"), "tiled": ("draft_model", "trees"), "exact": ("ngram", "trees")}
CASES = [
    Case(mode, dtype, proposer, rows=rows, device="cuda")
    for mode, proposers in PROPOSERS.items()
    for dtype in DTYPES
    for proposer in proposers
    for rows in (1, 8)
]
TEXT = tuple(7919 * i % 2000 + 3 for i in range(300))


def rows(model, text=TEXT):
    cache = model.new_cache(1, len(text))
    with torch.inference_mode():
        logits = model.forward(cache, chain_placement([list(text)], [0], cache.trash), WantedOutputs()).logits
    return to_numpy(logits[0])


def in_mode(mode, dtype, device):
    model = load_model("bundled:target", dtype=dtype, device=device).model
    return LeanModel(model.config, model.weights, model.eos_ids, model.facts, numerics.load(mode))


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_gives_the_bits_of_the_cpu(dtype, device):
    ours, theirs = rows(in_mode("exact", dtype, device)), rows(in_mode("exact", dtype, "cpu"))
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_fast_does_not(device):
    ours, theirs = rows(in_mode("fast", "float32", device)), rows(in_mode("fast", "float32", "cpu"))
    assert np.any(ours != theirs)
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["fixed", "tiled", "exact"])
def test_a_mode_holds_or_is_refused_in_words(mode, dtype, device):
    try:
        loaded = load_model("bundled:target", dtype=dtype, numerics=mode, device=device)
    except NumericsRefused as refused:
        pytest.skip(str(refused))
    probe = loaded.numerics.probe
    assert loaded.numerics.promises >= Invariance.CHAIN
    assert probe.passed
    assert probe.device.startswith("cuda")
    assert probe.capability.startswith("sm_")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_speculation_changes_no_bit(case, request):
    try:
        load_model("bundled:target", dtype=case.dtype, numerics=case.mode, device=case.device)
    except NumericsRefused as refused:
        pytest.skip(str(refused))
    count = request.config.getoption("--gpu-requests")
    found = compare(case, count=count)
    assert found.differing == 0
    assert found.same_tokens
    assert found.positions == count * LENGTH


def test_the_fast_mode_does_differ():
    found = compare(Case("fast", "float32", "draft_model", device="cuda"), count=2)
    assert found.differing > 0.5 * found.positions


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["fast", "tiled", "exact"])
def test_recorded_steps_give_what_unrecorded_ones_give(mode, dtype, device):
    graphed = target(mode, dtype, device)
    unrecorded = LeanModel(graphed.config, graphed.weights, numerics=numerics.load(mode))
    found = []
    for model in (graphed, unrecorded):
        cache = model.new_cache(2, 400)
        with torch.inference_mode():
            for row in (0, 1):
                prompt = chain_placement([list(TEXT[row : row + 120])], [0], cache.trash, first_row=row)
                model.forward(cache, prompt, WantedOutputs(logits=False))
            steps = []
            for step in range(60):
                runs = [list(TEXT[:3]), list(TEXT[: 1 + step % 5])]
                placement = chain_placement(runs, [120 + 2 * step, 120 + step], cache.trash)
                logits = model.forward(cache, placement, WantedOutputs()).logits
                steps += [to_numpy(logits[row, : len(run)]) for row, run in enumerate(runs)]
        found.append(np.concatenate(steps))
    if mode == "fast":
        np.testing.assert_allclose(*found, atol=2e-3 if dtype == "float32" else 0.2)
    else:
        assert np.array_equal(found[0].view(np.uint32), found[1].view(np.uint32))


def test_protocols_of_the_cases():
    """Both a greedy and a coupled rule are among the cases."""
    assert {case.protocol for case in CASES} == {Protocol.GREEDY, Protocol.GUMBEL}
