"""A test, on one model's shapes and in milliseconds, that this machine keeps a numerics mode's promise.

Every property is tried through the mode's own methods, so that the probe detects any kernel whose rows depend on their
number. A probe can refute a promise; it cannot prove one for shapes, positions and data that it did not try.

Modes that promise the same bits on every machine also have a small problem with a known answer. The problem is made of
fractions that every float type holds, by integer
arithmetic alone, so no generator and no rounding comes before the mode. The
digests were computed once; a mode whose arithmetic changes on purpose gets a new
one.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.core.errors import EngineError
from engine.models.cache import CacheShape, aim_at
from engine.models.interface import chain_placement
from engine.models.numerics.devices import CPU, capability, moved
from engine.models.numerics.interface import Affine, HeadSizes, Invariance, Numerics, RopeTables
from engine.models.probe import attention as probe_attention
from engine.models.probe import rows as probe_rows
from engine.models.probe.model_parts import ModelParts, difference

Property = Callable[[Numerics, ModelParts], str | None]
"""The first contradiction of a property; None if there is none."""
ANSWERS: Final[Mapping[str, str]] = {
    "exact": "2fc64681af246e14d6c2696a7288e6016dc1fa1ed49cb75bf8b5ee426839cefd",
    "ordered": "ba52b52938acf04ce2b37deac2e4820c6335fa7330b16bf23f9ac841247670c7",
    "int8": "8e6574debc65ede6fab15b426a7c91b8f785b7a3a784136d5e82422c9e374721",
}
"""SHA-256 of the answer by mode."""
TOKENS, HIDDEN = 7, 48
HEADS = HeadSizes(heads=4, kv_heads=2, head_dim=8, context=64)
EPS = 2.0**-20


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


def known_answer(mode: Numerics, parts: ModelParts) -> str | None:
    """How the digest of the answer differs from the one that every machine gives; None if it does not."""
    result, wanted = digest(mode, parts.device), ANSWERS.get(mode.name, "")
    return None if result == wanted else f"the answer's digest is {result[:12]}, and {wanted[:12]} everywhere else"


@torch.no_grad()
def digest(mode: Numerics, device: torch.device = CPU) -> str:
    """SHA-256 of a mode's results on the problem: products, norm, gate, rotation and attention, one after another."""

    def given(salt: int, *shape: int) -> Tensor:
        return numbers(salt, *shape).to(device)

    x = mode.norm(given(2, HIDDEN), EPS, HIDDEN)(given(1, TOKENS, HIDDEN))
    width = (HEADS.heads + 2 * HEADS.kv_heads) * HEADS.head_dim
    qkv = mode.matrix(Affine(given(3, width, HIDDEN), given(4, width)))(x)
    seen = _attention(mode, qkv.view(TOKENS, -1, HEADS.head_dim))
    hidden = mode.matrix(Affine(given(5, HIDDEN, seen.shape[1]), None))(seen)
    gated = mode.gate(mode.matrix(Affine(given(6, 2 * HIDDEN, HIDDEN), None))(hidden))
    answer = hashlib.sha256()
    for part in (x, qkv, hidden, gated):
        answer.update(part.double().contiguous().cpu().numpy().tobytes())
    return answer.hexdigest()


def _attention(mode: Numerics, qkv: Tensor) -> Tensor:
    frequencies = torch.tensor([1.0, 0.25, 0.0625, 0.015625], dtype=torch.float64)
    tables = moved(mode.rope(frequencies, TOKENS, qkv.dtype), qkv.device)
    turned = HEADS.heads + HEADS.kv_heads
    rotated = mode.rotate(qkv[:, :turned], RopeTables(tables.cos[:, None], tables.sin[:, None]))
    cache = mode.new_cache(CacheShape(1, 1, HEADS.kv_heads, TOKENS, HEADS.head_dim, device=qkv.device), qkv.dtype)
    placement = chain_placement([[0] * TOKENS], [0], cache.trash)
    cache.write(0, cache.open(moved(aim_at(placement), qkv.device)), rotated[:, HEADS.heads :], qkv[:, turned:])
    layout = moved(mode.layout(placement, HEADS, qkv.dtype), qkv.device)
    return mode.attend(rotated[:, : HEADS.heads], mode.windows(cache, layout)[0], layout)


def numbers(salt: int, *shape: int) -> Tensor:
    """Float32 multiples of 2^-9 between -1 and 1, scattered by a multiplicative hash."""
    index = torch.arange(math.prod(shape)) + 100003 * salt
    scattered = index * 2654435761 % 2**32 // 2**22
    return (scattered - 512).view(shape).to(torch.float32) / 512


PROPERTIES: Final[Mapping[str, PropertyTrial]] = {
    "products": PropertyTrial(probe_rows.products, Invariance.CHAIN, Invariance.CHAIN),
    "norm": PropertyTrial(probe_rows.norm, Invariance.CHAIN, Invariance.CHAIN),
    "gate": PropertyTrial(probe_rows.gate, Invariance.CHAIN, Invariance.CHAIN),
    "rotate": PropertyTrial(probe_rows.rotate, Invariance.CHAIN, Invariance.CHAIN),
    "attention_chain": PropertyTrial(probe_attention.chains, Invariance.CHAIN, Invariance.CHAIN),
    "attention_batch": PropertyTrial(probe_attention.batches, Invariance.CHAIN, Invariance.CHAIN),
    "attention_tree": PropertyTrial(probe_attention.trees, Invariance.TREE, Invariance.TREE),
    "threads": PropertyTrial(threads, Invariance.EVERYWHERE, Invariance.CHAIN),
    "known_answer": PropertyTrial(known_answer, Invariance.EVERYWHERE, Invariance.EVERYWHERE),
}
"""In the order in which they are tried."""
