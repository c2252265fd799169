"""A test, on one model's shapes and in milliseconds, that this machine keeps a numerics mode's promise.

Every property is tried through the mode's own methods, so that the probe detects any kernel whose rows depend on their
number. A probe can refute a promise; it cannot prove one for shapes, positions and data that it did not try.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.core.errors import EngineError
from engine.models.numerics.devices import capability
from engine.models.numerics.interface import Invariance, Numerics
from engine.models.probe import attention as probe_attention
from engine.models.probe import known_answer as probe_known
from engine.models.probe import rows as probe_rows
from engine.models.probe.model_parts import ModelParts, difference

Property = Callable[[Numerics, ModelParts], str | None]
"""The first contradiction of a property; None if there is none."""


@dataclass(frozen=True, slots=True)
class PropertyResult:
    """One property; `detail` describes the observation if it does not hold. A property that was not promised decides
    nothing.
    """

    name: str
    held: bool
    detail: str
    microseconds: int
    promised: bool = True


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result for one mode and one model's shapes.

    capability: the instruction set that torch's kernels use; of a GPU its architecture.
    """

    mode: str
    dtype: str
    threads: int
    capability: str
    device: str
    results: tuple[PropertyResult, ...]

    @property
    def passed(self) -> bool:
        """Every promised property held."""
        return self.failure is None

    @property
    def failure(self) -> PropertyResult | None:
        """The first promised property that did not hold."""
        return next((result for result in self.results if result.promised and not result.held), None)

    @property
    def milliseconds(self) -> float:
        """The probe's duration."""
        return sum(result.microseconds for result in self.results) / 1000

    def facts(self) -> Mapping[str, Any]:
        """As JSON, without times: equal machines give equal facts."""
        names = ("name", "held", "detail", "promised")
        return {
            "mode": self.mode,
            "passed": self.passed,
            "dtype": self.dtype,
            "threads": self.threads,
            "capability": self.capability,
            "device": self.device,
            "properties": [{name: getattr(result, name) for name in names} for result in self.results],
        }


@dataclass(frozen=True, slots=True)
class PropertyTrial:
    """A property, and from which promise on it is promised."""

    run: Property
    least: Invariance
    tried_from: Invariance


@torch.no_grad()
def probe(parts: ModelParts, mode: Numerics) -> ProbeReport:
    """Test every property that a mode promises; a mode without promises passes untested.

    torch's number of threads is changed while `threads` is tried, and restored.
    """
    return ProbeReport(
        mode=mode.name,
        dtype=str(parts.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        capability=capability(parts.device),
        device=str(parts.device),
        results=tuple(_results(parts, mode)),
    )


def _results(parts: ModelParts, mode: Numerics) -> Iterator[PropertyResult]:
    for name, trial in PROPERTIES.items():
        if mode.promises < trial.tried_from or (name == "threads" and torch.get_num_threads() == 1):
            continue
        began = time.perf_counter_ns()
        problem = _tried(trial.run, mode, parts)
        spent = (time.perf_counter_ns() - began) // 1000
        yield PropertyResult(name, problem is None, problem or "", spent, mode.promises >= trial.least)


def _tried(run: Property, mode: Numerics, parts: ModelParts) -> str | None:
    try:
        return run(mode, parts)
    except (EngineError, RuntimeError) as error:  # torch raises this if a dtype or device lacks a kernel
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def threads(mode: Numerics, parts: ModelParts) -> str | None:
    """The first result that one thread computes differently from all threads; None if there is none."""
    several = torch.get_num_threads()
    ours = _sample(mode, parts)
    torch.set_num_threads(1)
    try:
        theirs = _sample(mode, parts)
    finally:
        torch.set_num_threads(several)
    for name, answer in ours.items():
        wrong = difference(answer, theirs[name])
        if wrong:
            return f"{name}, row {wrong.row}: {several} threads differ from one: {wrong}"
    return None


def _sample(mode: Numerics, parts: ModelParts) -> dict[str, Tensor]:
    """Products of few and of many rows, and attention of a prompt."""
    result = {}
    for name, affine in parts.affines.items():
        multiply = mode.matrix(affine)
        for rows in (1, 5, probe_rows.MANY):
            result[f"{name} of {rows} rows"] = multiply(parts.draw(rows, rows, affine.weight.shape[1]))
    filled = min(parts.heads.context, probe_rows.MANY)
    bench = probe_attention.AttentionProbe(mode, parts, 1, filled)
    return result | {"attention": bench.chain(0, 0, filled)}


PROPERTIES: Final[Mapping[str, PropertyTrial]] = {
    "products": PropertyTrial(probe_rows.products, Invariance.CHAIN, Invariance.CHAIN),
    "norm": PropertyTrial(probe_rows.norm, Invariance.CHAIN, Invariance.CHAIN),
    "gate": PropertyTrial(probe_rows.gate, Invariance.CHAIN, Invariance.CHAIN),
    "rotate": PropertyTrial(probe_rows.rotate, Invariance.CHAIN, Invariance.CHAIN),
    "attention_chain": PropertyTrial(probe_attention.chains, Invariance.CHAIN, Invariance.CHAIN),
    "attention_batch": PropertyTrial(probe_attention.batches, Invariance.CHAIN, Invariance.CHAIN),
    "attention_tree": PropertyTrial(probe_attention.trees, Invariance.TREE, Invariance.TREE),
    "threads": PropertyTrial(threads, Invariance.EVERYWHERE, Invariance.CHAIN),
    "known_answer": PropertyTrial(probe_known.known_answer, Invariance.EVERYWHERE, Invariance.EVERYWHERE),
}
"""In the order in which they are tried."""
