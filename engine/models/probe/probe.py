"""A test, on one model's shapes and in milliseconds, that this machine keeps a numerics mode's promise.

Every property is tried through the mode's own methods, so that the probe detects any kernel whose rows depend on their
number. A probe can refute a promise; it cannot prove one for shapes, positions and data that it did not try.

Modes that promise the same bits on every machine also have a small problem with a known answer. The problem is made of
fractions that every float type holds, by integer arithmetic alone, so no generator and no rounding comes before the
mode. The digests were computed once; a mode whose arithmetic changes on purpose gets a new one.

Products, norms, gates and rotations, whose rows must not depend on each other, are each computed for many rows at once,
then again for other numbers of rows, at other places, among other neighbours.
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
COUNTS = (*range(1, 17), 33, 64)
MANY = 257
"""Rows of the reference call: as many as in a prefill, and not a round number."""
FEW = 16
SEED = 41


def products(mode: Numerics, parts: ModelParts) -> str | None:
    """The first row dependence of a matrix product; None if there is none."""
    for index, (name, affine) in enumerate(parts.affines.items()):
        rows = parts.draw(SEED + index, MANY, affine.weight.shape[1])
        text = row_dependence(mode.matrix(affine), rows)
        if text:
            return f"{name} {_shape(affine)}: {text}"
    return None


def norm(mode: Numerics, parts: ModelParts) -> str | None:
    """The first row dependence of a norm, of the hidden state or of queries and keys."""
    hidden = parts.draw(SEED, MANY, len(parts.norm))
    text = row_dependence(mode.norm(parts.norm, parts.eps, len(parts.norm)), hidden)
    if text or not parts.qk_norm:
        return text
    text = row_dependence(mode.norm(None, parts.eps, parts.heads.head_dim), _turned(parts))
    return f"queries and keys: {text}" if text else None


def gate(mode: Numerics, parts: ModelParts) -> str | None:
    """The first row dependence of an activation."""
    return row_dependence(mode.gate, parts.draw(SEED, MANY, 2 * parts.ffn))


def rotate(mode: Numerics, parts: ModelParts) -> str | None:
    """The first row dependence of a rotation; every row has its own position."""
    positions = min(MANY, parts.heads.context)
    tables = mode.rope(parts.frequencies, positions, parts.dtype)
    rope = RopeTables(tables.cos.to(parts.device)[:, None], tables.sin.to(parts.device)[:, None])
    x = _turned(parts)[:positions]
    whole = mode.rotate(x, rope)
    for count in (item for item in COUNTS if item <= positions):
        start = _start(count, positions)
        piece = slice(start, start + count)
        wrong = difference(mode.rotate(x[piece].clone(), RopeTables(rope.cos[piece], rope.sin[piece])), whole[piece])
        if wrong:
            return f"row {wrong.row} of {count} differs from the same row of {positions}: {wrong}"
    return None


def row_dependence(function: Callable[[Tensor], Tensor], rows: Tensor) -> str | None:
    """How a function of [N, ...] rows depends on their number, place or neighbours; None if it does not."""
    whole = function(rows)
    for count in COUNTS:
        start = _start(count, len(rows))
        # a copy, because a kernel may depend on the address of its input
        wrong = difference(function(rows[start : start + count].clone()), whole[start : start + count])
        if wrong:
            return f"row {wrong.row} of {count} differs from the same row of {len(rows)}: {wrong}"
    # and every row once more, for with several threads it may be a single row where their shares meet
    wrong = difference(torch.cat([function(part.clone()) for part in torch.split(rows, FEW)]), whole)
    if wrong:
        return f"row {wrong.row} of {len(rows)} differs from the same row of {FEW}: {wrong}"
    turned = rows[: max(COUNTS)].flip(0)
    wrong = difference(function(turned).flip(0), whole[: len(turned)])
    return f"row {wrong.row} differs from the same row at another place: {wrong}" if wrong else None


def _start(count: int, rows: int) -> int:
    """A place for `count` of `rows` rows: for even counts the end, where blocked kernels have their remainder."""
    return rows - count if count % 2 == 0 else 127 * count % (rows - count + 1)


def _turned(parts: ModelParts) -> Tensor:
    heads = parts.heads
    return parts.draw(SEED, MANY, heads.heads + heads.kv_heads, heads.head_dim)


def _shape(affine: Affine) -> str:
    rows, columns = affine.weight.shape
    return f"[{rows}, {columns}]"


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
        for rows in (1, 5, MANY):
            result[f"{name} of {rows} rows"] = multiply(parts.draw(rows, rows, affine.weight.shape[1]))
    filled = min(parts.heads.context, MANY)
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
    "products": PropertyTrial(products, Invariance.CHAIN, Invariance.CHAIN),
    "norm": PropertyTrial(norm, Invariance.CHAIN, Invariance.CHAIN),
    "gate": PropertyTrial(gate, Invariance.CHAIN, Invariance.CHAIN),
    "rotate": PropertyTrial(rotate, Invariance.CHAIN, Invariance.CHAIN),
    "attention_chain": PropertyTrial(probe_attention.chains, Invariance.CHAIN, Invariance.CHAIN),
    "attention_batch": PropertyTrial(probe_attention.batches, Invariance.CHAIN, Invariance.CHAIN),
    "attention_tree": PropertyTrial(probe_attention.trees, Invariance.TREE, Invariance.TREE),
    "threads": PropertyTrial(threads, Invariance.EVERYWHERE, Invariance.CHAIN),
    "known_answer": PropertyTrial(known_answer, Invariance.EVERYWHERE, Invariance.EVERYWHERE),
}
"""In the order in which they are tried."""
