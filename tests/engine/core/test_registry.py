"""The literal registries: everything named can be loaded, and a wrong name is told the right ones."""

import pytest

from engine import backends, faults, proposers, verify
from engine.backends.engine_spec import ModelSource
from engine.core.errors import InvalidRequest, ModelNeeded
from engine.core.registry import BACKENDS, FILTERS, resolve
from engine.core.types import DraftRule, Protocol
from engine.proposers import options
from engine.proposers.interface import ProposerParts
from engine.sampling.draw import draw
from tests.support.cases import every_case

REGISTRIES = {
    "proposer": proposers.REGISTRY,
    "verifier": verify.REGISTRY,
    "backend": BACKENDS,
    "fault": faults.REGISTRY,
    "filter": FILTERS,
}


def require_entry(kind, name):
    found = resolve(REGISTRIES[kind], name, kind)
    if kind == "proposer":
        assert callable(found.build)
    elif kind == "backend":
        assert callable(found.open)
    elif kind == "fault":
        assert callable(found.apply)
        assert faults.load(name).name == name
    else:
        assert callable(found)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_entry_loads(kind):
    with every_case() as case:
        for name in REGISTRIES[kind]:
            with case(name):
                require_entry(kind, name)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_an_unknown_name_is_told_the_known_ones(kind):
    with pytest.raises(
        InvalidRequest, match=f"unknown {kind} 'nonesuch'; known: {', '.join(sorted(REGISTRIES[kind]))}"
    ):
        resolve(REGISTRIES[kind], "nonesuch", kind)


def test_every_protocol_has_its_verifier_and_no_other():
    assert set(verify.REGISTRY) == {protocol.value for protocol in Protocol}
    for protocol in Protocol:
        assert verify.load(protocol).facts.protocol is protocol


def test_an_unknown_backend_is_refused_before_any_model_is_opened():
    with pytest.raises(InvalidRequest, match="unknown backend"):
        backends.open_backend("nonesuch", {"target": ModelSource("/nowhere")})


def test_options_and_needs_are_of_registered_proposers_only():
    assert {*options.OPTIONS, *options.NEEDS, *options._TOGETHER} <= set(proposers.REGISTRY)


@pytest.mark.parametrize("kind", proposers.REGISTRY)
def test_a_proposer_needs_the_model_that_its_page_of_options_names(kind):
    given = {"skip_ffn": "0"} if kind == "layer_skip" else {}
    parts = ProposerParts(1, 1, DraftRule.GREEDY, draw, eos_ids=(), options=given)
    needed = options.NEEDS.get(kind)
    if needed is None and kind not in ("early_exit", "layer_skip"):
        assert proposers.build(kind, parts).facts.options.keys() == options.OPTIONS[kind].keys()
        return
    with pytest.raises(InvalidRequest, match=f"^proposer {kind} needs {needed or 'the target and its cache'}$") as told:
        proposers.build(kind, parts)
    assert isinstance(told.value, ModelNeeded) is (needed is not None)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("ngram", {"min_ngram": 5}, "min_ngram 5 is above max_ngram 4"),
        ("medusa", {"tree": "2,1", "draw": "soft"}, "option draw must be top with a tree"),
        ("layer_skip", {}, "name nothing to skip"),
        ("sequoia", {"shape": "-1", "depth": 2}, "leave out depth"),
        ("sequoia", {"rates": "0.9,0.2"}, "must sum to at most 1, not 1.1"),
    ],
)
def test_options_that_exclude_each_other_are_refused(kind, given, said):
    with pytest.raises(InvalidRequest, match=said):
        options.read(kind, given)
