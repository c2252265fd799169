"""A probe sees each kind of broken kernel, and under the right name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.core.errors import InvalidRequest, NumericsRefused
from engine.models import numerics
from engine.models.loading import load_model, load_parts
from engine.models.numerics.exact import ExactNumerics
from engine.models.numerics.interface import Invariance
from engine.models.numerics.tiled import FixedNumerics
from engine.models.probe.choose import choose, foreign
from engine.models.probe.model_parts import difference
from engine.models.probe.probe import ANSWERS, PROPERTIES, digest, probe, row_dependence
from tests.engine.numerics import broken
from tests.support.tiers import fast_first

ROWS = ("products", "norm", "gate", "rotate")
CHAINS = (*ROWS, "attention_chain", "attention_batch")
TREES = (*CHAINS, "attention_tree")
HERE = "tests.engine.numerics.broken:"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def parts():
    return load_parts("bundled:target")


def names(report):
    return tuple(each.name for each in report.results)


def failures(report):
    return {each.name for each in report.results if not each.held}


@pytest.mark.medium
def test_the_mode_that_holds_everywhere_holds_here(parts):
    report = probe(parts, ExactNumerics())
    assert names(report) == (*TREES, "known_answer")
    assert failures(report) == set()
    assert report.passed
    assert (report.mode, report.dtype, report.threads, report.device) == ("exact", "float32", 1, "cpu")
    assert all(each.microseconds > 0 for each in report.results)


@pytest.mark.parametrize("mode", ["fixed", "tiled"])
@pytest.mark.parametrize("dtype", fast_first(["float32", "bfloat16"]))
@pytest.mark.slow
def test_the_fast_modes_with_a_promise_hold_on_two_threads(mode, dtype):
    """Where two threads share an activation, the numbers at the seam are computed by other instructions."""
    torch.set_num_threads(2)
    report = probe(load_parts("bundled:target", dtype=dtype), numerics.load(mode))
    on_tiles = dtype == "bfloat16" and torch.cpu._is_amx_tile_supported()
    assert failures(report) <= ({"products"} if on_tiles else set())
    assert report.threads == 2


def test_one_row_in_many_is_found():
    """A row that no count happens to begin or end with."""

    def broken_at_the_seam(rows):
        answer = rows.clone()
        if len(rows) > 200:
            answer[128] += 1e-6
        return answer

    rows = torch.arange(257.0 * 4).reshape(257, 4) / 1000
    assert row_dependence(lambda part: part.clone(), rows) is None
    assert row_dependence(broken_at_the_seam, rows) is not None


@pytest.mark.medium
def test_no_more_is_tried_than_is_promised(parts):
    assert probe(parts, numerics.load("fast")).results == ()
    assert probe(parts, numerics.load("fast")).passed
    assert names(probe(parts, numerics.load("fixed"))) == CHAINS
    assert names(probe(parts, numerics.load("tiled"))) == TREES


@pytest.mark.medium
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (broken.CountedProducts, "products"),
        pytest.param(broken.PlacedProducts, "products", marks=pytest.mark.slow),
        pytest.param(broken.NeighbouringProducts, "products", marks=pytest.mark.slow),
        pytest.param(broken.CountedNorm, "norm", marks=pytest.mark.slow),
        pytest.param(broken.CountedGate, "gate", marks=pytest.mark.slow),
        (broken.CountedRotation, "rotate"),
        (broken.LongChains, "attention_chain"),
        (broken.LongPrompts, "attention_chain"),
        (broken.MiddlePrompts, "attention_chain"),
        (broken.StaleColumns, "attention_chain"),
        (broken.Batches, "attention_batch"),
        (broken.InsertedZeros, "attention_tree"),
    ],
)
def test_each_kind_of_broken_kernel_is_seen(parts, mode, name):
    report = probe(parts, mode())
    assert report.failure.name == name
    assert "differ" in report.failure.detail
    assert not report.passed
    # the two that draft chains and trees share the kernel that broke
    assert failures(report) - {name} <= {"attention_batch", "attention_tree"}


@pytest.mark.medium
def test_the_detail_says_where(parts):
    detail = probe(parts, broken.CountedProducts()).failure.detail
    assert detail.startswith("qkv [512, 256]: row 0 of 13 differs from the same row of 257: ")
    detail = probe(parts, broken.InsertedZeros()).failure.detail
    assert "of a tree of 24 after 121 tokens differs from the same path as a chain" in detail


@pytest.mark.medium
def test_a_product_of_torch_that_depends_on_its_rows_is_seen(parts, monkeypatch):
    whole = FixedNumerics.matrix

    def matrix(self, affine):
        inner = whole(self, affine)
        return lambda x: inner(x) * broken.LITTLE if len(x) == 7 else inner(x)

    monkeypatch.setattr(FixedNumerics, "matrix", matrix)
    for name in ("fixed", "tiled"):
        assert probe(parts, numerics.load(name)).failure.name == "products"


@pytest.mark.medium
def test_a_kernel_that_is_missing_is_a_failure_and_no_crash(parts):
    failure = probe(parts, broken.Absent()).failure
    assert (failure.name, failure.detail) == ("products", "NotImplementedError: no kernel for this dtype")


@pytest.mark.medium
def test_another_machine_is_seen_by_its_answer(parts):
    report = probe(parts, broken.OtherMachine())
    assert failures(report) == {"known_answer"}
    assert digest(broken.OtherMachine()) != ANSWERS["exact"] == digest(ExactNumerics())


@pytest.mark.medium
def test_threads_decide_only_where_they_are_promised(parts, monkeypatch):
    monkeypatch.setattr("engine.models.probe.probe.PROPERTIES", {"threads": PROPERTIES["threads"]})
    assert probe(parts, broken.Threaded()).results == ()
    torch.set_num_threads(2)
    small = replace(parts, affines={"out": parts.affines["out"]}, heads=replace(parts.heads, context=64))
    lesser, greater = (probe(small, mode()) for mode in (broken.Threaded, broken.ThreadedEverywhere))
    assert torch.get_num_threads() == 2
    for report in (lesser, greater):
        found = {each.name: each for each in report.results}
        assert not found["threads"].held
        assert "2 threads differ from one" in found["threads"].detail
    assert lesser.passed
    assert greater.failure.name == "threads"


@pytest.mark.medium
def test_small_models_are_probed_within_their_context(parts):
    for context in (1, 5, 63, 64, 130):
        short = replace(parts, heads=replace(parts.heads, context=context))
        report = probe(short, broken.Sound())
        assert failures(report) == (set() if context > 61 else {"attention_tree"})
        assert "too short to try trees" in report.failure.detail if context < 62 else report.passed


@pytest.mark.parametrize(("rows", "place"), [(257, 256), (257, 193), (257, 150), (64, 0), (64, 63), (33, 32), (1, 0)])
def test_one_wrong_row_is_seen_wherever_a_blocked_kernel_has_it(rows, place):
    def function(x):
        answer = x.clone()
        if len(x) == rows:
            answer[place] *= broken.LITTLE
        return answer

    x = torch.arange(1.0, 1 + 3 * 257).view(257, 3)
    assert row_dependence(torch.clone, x) is None
    assert row_dependence(function, x) is not None


def test_a_row_that_knows_its_place_is_seen():
    def function(x):
        return x + 2.0**-10 * (torch.arange(len(x)) == 5)[:, None]

    assert row_dependence(function, torch.ones(257, 3)) is not None


def test_bits_are_compared_and_not_numbers():
    zero, minus = torch.tensor([[0.0]]), torch.tensor([[-0.0]])
    nan = torch.tensor([[1.0, 2.0], [1.0, float("nan")]])
    assert difference(zero, minus) is not None
    assert difference(nan, nan.clone()) is None
    assert difference(nan.bfloat16(), nan.bfloat16() + 1).row == 0


@pytest.fixture
def registry(monkeypatch):
    """Modes that are the same on every machine: ordered and tiled break trees, fixed holds."""
    monkeypatch.setitem(numerics.REGISTRY, "ordered", f"{HERE}InsertedZeros")
    monkeypatch.setitem(numerics.REGISTRY, "tiled", f"{HERE}InsertedZeros")
    monkeypatch.setitem(numerics.REGISTRY, "fixed", f"{HERE}Sound")


@pytest.mark.medium
def test_a_mode_that_was_asked_for_is_refused_and_never_replaced(parts, registry):
    with pytest.raises(NumericsRefused) as refused:
        choose("tiled", parts, "some/target")
    message = str(refused.value)
    assert message.startswith("some/target: numerics tiled is refused")
    assert "attention_tree (node " in message
    assert message.endswith("; use numerics: auto, or another mode")
    assert "\n" not in message


@pytest.mark.medium
def test_auto_takes_the_next_and_says_why(parts, registry):
    choice = choose("auto", parts, "t")
    assert (choice.numerics.name, choice.facts.mode, choice.facts.requested) == ("sound", "fixed", "auto")
    assert choice.facts.reason.startswith("tiled fails attention_tree (node ")
    assert [each.failure.name for each in choice.facts.refused] == ["attention_tree"] * 2
    full = choice.facts.full_facts()
    assert json.loads(json.dumps(full)) == full
    assert (full["promises"], full["probe"]["passed"], full["refused"][0]["passed"]) == ("tree", True, False)
    assert "microseconds" not in json.dumps(full)


@pytest.mark.slow
def test_auto_ends_with_the_mode_that_promises_nothing(parts, registry, monkeypatch):
    monkeypatch.setitem(numerics.REGISTRY, "fixed", f"{HERE}CountedNorm")
    facts = choose("auto", parts, "t").facts
    assert (facts.mode, facts.promises) == ("fast", Invariance.NONE)
    assert "tiled fails attention_tree" in facts.reason
    assert "; sound fails norm (row " in facts.reason


@pytest.mark.medium
def test_a_sound_first_choice_needs_no_reason(parts, monkeypatch):
    monkeypatch.setitem(numerics.REGISTRY, "ordered", f"{HERE}Sound")
    facts = choose("auto", parts, "t").facts
    assert (facts.mode, facts.reason, facts.refused) == ("ordered", None, ())


@pytest.mark.medium
def test_the_loaded_model_runs_what_was_chosen():
    for asked in ("fast", "fixed", "exact"):
        loaded = load_model("bundled:draft", numerics=asked)
        assert (loaded.model.numerics.name, loaded.numerics.mode) == (asked, asked)
        assert loaded.numerics.promises is loaded.model.numerics.promises
    assert load_model("bundled:draft").numerics.mode == "fast"


def test_transformers_own_arithmetic_is_fast_and_nothing_else():
    facts = load_model("bundled:draft", loader="hf", numerics="auto").numerics
    assert (facts.mode, facts.requested, facts.promises) == ("fast", "auto", Invariance.NONE)
    assert "loader hf" in facts.reason
    with pytest.raises(InvalidRequest, match="loader hf has no numerics exact; use loader: lean"):
        load_model("bundled:draft", loader="hf", numerics="exact")
    with pytest.raises(InvalidRequest, match="'best' is not one of auto, fast, fixed, tiled, ordered, exact, int8"):
        load_model("bundled:draft", numerics="best")
    with pytest.raises(InvalidRequest, match="not one of"):
        foreign("best", "m")


def test_every_property_has_a_name_that_the_page_explains():
    page = (Path(__file__).parents[3] / "docs" / "numerics.md").read_text(encoding="utf-8")
    assert [name for name in PROPERTIES if f"| `{name}` |" not in page] == []
