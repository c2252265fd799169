"""The literal registries: everything named can be loaded, and a wrong name is told the right ones."""

import pytest

from engine import backends, faults, proposers, verify
from engine.backends.engine_spec import ModelSource
from engine.core.errors import InvalidRequest
from engine.core.registry import resolve
from engine.core.types import Protocol
from tests.support.cases import every_case

REGISTRIES = {
    "proposer": proposers.REGISTRY,
    "verifier": verify.REGISTRY,
    "backend": {name: kind.open for name, kind in backends.REGISTRY.items()},
    "fault": faults.REGISTRY,
}


def require_entry(kind, name):
    found = resolve(REGISTRIES[kind], name, kind)
    if kind == "proposer":
        assert callable(found.build)
    elif kind == "fault":
        assert found.name == name
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
