"""Assigns parameter sets of a test to the unit and slow tiers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from engine.core.types import Protocol

Pair = tuple[str, Protocol]

TIERS = frozenset("medium slow heavy postgres browser gpu attach ort llama mlx openvino ray slurm vllm real".split())
"""Marks that take a case out of the unit tier."""


def fast_first(values: Iterable[Any], fast: int = 1) -> list[Any]:
    """The values as parameters: the first `fast` are in the unit tier, the others slow.

    A tuple has one value per name; wrap it in `pytest.param` if it is the value of a single name.
    """
    return [_slow(value) if i >= fast else value for i, value in enumerate(values)]


def slow_unless(values: Iterable[Any], fast: Iterable[Any]) -> list[Any]:
    """The values as parameters: those in `fast`, which must all exist, in the unit tier, the others slow."""
    values, fast = list(values), list(fast)
    assert all(each in values for each in fast), f"not all of {fast} are parameters"
    return [value if value in fast else _slow(value) for value in values]


def _slow(value: Any) -> Any:
    if hasattr(value, "marks"):
        return pytest.param(*value.values, marks=(*value.marks, pytest.mark.slow), id=value.id)
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)


def first_rejection(pairs: Iterable[Pair]) -> list[Pair]:
    """For each proposer, the first of its rules that accepts and rejects by p and q."""
    comparing, first = (Protocol.GREEDY, Protocol.GUMBEL), {}
    for name, protocol in pairs:
        if protocol not in comparing:
            first.setdefault(name, protocol)
    return list(first.items())


def daily(pairs: Iterable[Pair], coupled: Iterable[str] = ()) -> list[Pair]:
    """For each proposer the first rule that rejects; the coupled rule for one without it and for those in `coupled`."""
    pairs = list(pairs)
    rejecting = first_rejection(pairs)
    wanted = {*coupled} | {name for name, _ in pairs} - {name for name, _ in rejecting}
    return [*rejecting, *((name, rule) for name, rule in pairs if rule is Protocol.GUMBEL and name in wanted)]
