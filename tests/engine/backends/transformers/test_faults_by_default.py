"""README's suite in transformers, no check named: no fault of the target's rows ends with a pass.

Faults of a verification change the target's forward over the sampled arm's drafted tokens; a greedy arm beside it is
clean. Other weights are behind every arm, as after a wrong conversion: the baseline is no account of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.backends.transformers import models as backend_models
from engine.backends.transformers.backend import TransformersEngine
from engine.backends.transformers.networks import network_of, open_network
from engine.core.types import Protocol
from tests.support.other_weights import MISTAKES, other_target
from tests.support.readme_suite import Shape, audited
from tests.support.tiers import slow_unless

MODELS = {"target": "bundled:target", "draft": "bundled:draft"}
HEAD = 3
"""Cached tokens that `_history_lost` forgets."""


class SampledArm(TransformersEngine):
    """Says when the sampled arm decodes."""

    running = False

    def generate(self, requests):
        SampledArm.running = self.plan.protocol is Protocol.CHAIN
        yield from super().generate(requests)
        SampledArm.running = False


class Verifying:
    """The target's forward; `rows` and `inputs` change the sampled arm's passes over several tokens behind a cache."""

    def __init__(self, forward: Callable[..., Any], rows: Any = None, inputs: Any = None) -> None:
        self.forward, self.rows, self.inputs = forward, rows, inputs

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        cache, ids = named.get("past_key_values"), named.get("input_ids")
        before = 0 if cache is None else cache.get_seq_length()
        verifies = SampledArm.running and before > 0 and ids is not None and ids.shape[1] > 1
        if verifies and self.inputs:
            named |= self.inputs(before, ids)
        out = self.forward(*arguments, **named)
        if verifies and self.rows:
            out.logits = self.rows(out.logits)
        return out


class Remembered:
    """The rows of the pass before, if they are as many."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        last, self.last = self.last, logits
        return last if last is not None and last.shape == logits.shape else logits


def _shifted(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


def _bonus(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([logits[:, :-1], logits[:, -2:-1]], dim=1)


def _mask(before: int, count: int, allowed: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"attention_mask": allowed[:, : before + count][None, None]}


def _causal(before: int, count: int) -> torch.Tensor:
    return torch.ones(count, before + count, dtype=torch.bool).tril(before)


def _leaking(before: int, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    count = ids.shape[1]
    return _mask(before, count, torch.ones(count, before + count, dtype=torch.bool))


def _history_lost(before: int, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    allowed = _causal(before, ids.shape[1])
    allowed[:, max(0, before - HEAD) : before] = False
    return _mask(before, ids.shape[1], allowed)


def _late(before: int, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"position_ids": torch.arange(before + 1, before + 1 + ids.shape[1])[None]}


ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "target_rows_shifted": lambda: {"rows": _shifted},
    "bonus_wrong_row": lambda: {"rows": _bonus},
    "rows_of_another_request": lambda: {"rows": Remembered()},
    "drafted_rows_in_bfloat16": lambda: {"rows": lambda logits: logits.bfloat16().float()},
    "positions_off_by_one": lambda: {"inputs": _late},
    "mask_leaks": lambda: {"inputs": _leaking},
    "history_lost": lambda: {"inputs": _history_lost},
}
EVERY = [*ROWS, *MISTAKES]


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """How an audit ends, beside a clean greedy arm if `beside`; None is no fault."""

    def opened(fault, source):
        if source.source != MODELS["target"] or fault is None:
            return open_network(source)
        if fault in MISTAKES:
            return open_network(replace(source, source=str(other_target(fault, tmp_path))))
        loaded = open_network(source)
        network = network_of(loaded)
        network.forward = Verifying(network.forward, **ROWS[fault]())
        return loaded

    def run(fault, **named):
        monkeypatch.setattr(backend_models, "open_network", lambda source: opened(fault, source))
        monkeypatch.setattr(backend_models, "TransformersEngine", SampledArm)
        return audited(tmp_path, Shape(MODELS, "transformers", **named))

    return run


@pytest.mark.medium
@pytest.mark.parametrize("record", slow_unless(["tokens", "scalars", "full"], ["full"]))
def test_a_clean_run_is_looked_at_twice(ended, record):
    """It is undecided for its size: fewer tokens than the laws need."""
    done = ended(None, arm={"record": record})
    assert done.by("fault") == set(), done.told
    assert "second_accounts" in done.by("certified"), done.told
    assert done.code == 3


@pytest.mark.medium
@pytest.mark.parametrize("fault", slow_unless(EVERY, ["target_rows_shifted", "attention_scaled"]))
def test_no_fault_of_the_rows_ends_with_a_pass(ended, fault):
    done = ended(fault, beside=fault not in MISTAKES)
    assert "row_closeness" not in done.by("certified"), done.told
    if fault in MISTAKES:
        assert done.code in (1, 3)
        assert done.code == 1 or "plain decoding itself" in done.checks["rejection"]["row_closeness"]["summary"]
    else:
        assert done.code == done.alone() == 1, done.told


@pytest.mark.slow
@pytest.mark.parametrize("record", ["tokens", "scalars"])
@pytest.mark.parametrize("fault", ["target_rows_shifted", "attention_scaled"])
def test_none_does_where_no_rows_are_recorded(ended, fault, record):
    done = ended(fault, arm={"record": record})
    # plain decoding is as wrong as the candidate, and what is then called noise certifies nothing
    assert done.code == 1 or (fault in MISTAKES and done.code == 3), done.told
    assert not {"token_law", "logprob_closeness"} & done.by("certified"), done.told
