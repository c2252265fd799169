"""Hooks that observe assisted generation for one call of `generate`.

A `with` block replaces two callables and always restores them at its end: the network's `_get_candidate_generator`,
whose generator reports the drafts and receives the accepted tokens, and the module's `_speculative_sampling`. The
random numbers are those that the original drew: the hooks observe its calls and draw nothing again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers.generation.utils as generation_utils
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.core.types import Floats

GENERATOR = "_get_candidate_generator"
SAMPLING = "_speculative_sampling"
Wrap = Callable[[Any], Any]


@dataclass(slots=True)
class HookedStep:
    """One step as the engine reported it: N tokens drafted after `prefix`, E committed.

    q: [N, V] softmax of the candidate's logits, None where it gives none. In float64, as p: the engine's own
        float32 softmax of the same scores differs from it by rounding.
    p: [E, V] softmax of the processed rows of the committed tokens.
    drafted_p: [N] the same softmax at the drafted tokens, each after the ones before it.
    matches: the engine's count of accepted tokens, after it cut at an end.
    sampled: accepted tokens that `_speculative_sampling` returned; None if it was not called.
    uniforms: [N] the acceptance numbers; empty if none were drawn.
    """

    prefix: tuple[int, ...]
    drafted: tuple[int, ...]
    q: Floats | None
    draft_us: int
    began: float
    committed: tuple[int, ...] = ()
    p: Floats = field(default_factory=lambda: np.empty((0, 0)))
    drafted_p: tuple[float, ...] = ()
    matches: int | None = None
    sampled: int | None = None
    uniforms: tuple[float, ...] = ()
    verify_us: int = 0

    @property
    def finished(self) -> bool:
        """True if the engine reported the accepted tokens."""
        return self.matches is not None


@dataclass(slots=True)
class HookedGenerate:
    """All steps of one `generate`; `drafter` is the class of its candidate generator."""

    greedy: bool
    steps: list[HookedStep] = field(default_factory=list)
    drafter: str | None = None


class _Numbers(TorchFunctionMode):
    """Keeps the results of `torch.rand_like` while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call; keep acceptance numbers."""
        result = func(*args, **(kwargs or {}))
        if func is torch.rand_like:
            self.drawn.append(result)
        return result


@contextmanager
def watched(network: Any, greedy: bool, wrap: Wrap | None = None) -> Iterator[HookedGenerate]:
    """Watch the network's assisted generation.

    Args:
        network: the target.
        greedy: whether the engine picks the largest score instead of sampling.
        wrap: changes the candidate generator before it is watched (`engine.backends.transformers.backend`).
    """
    seen = HookedGenerate(greedy)
    candidates, sampling = getattr(network, GENERATOR), getattr(generation_utils, SAMPLING)
    own = GENERATOR in vars(network)

    def generator(*arguments: Any, **named: Any) -> Any:
        made = candidates(*arguments, **named)
        seen.drafter = type(made).__name__
        return _watch(wrap(made) if wrap else made, seen)

    with _same_depth(network):
        try:
            setattr(network, GENERATOR, generator)
            setattr(generation_utils, SAMPLING, _sampling(sampling, seen))
            yield seen
        finally:
            setattr(generation_utils, SAMPLING, sampling)
            # a method of the class is found again once the attribute of the object is gone
            setattr(network, GENERATOR, candidates) if own else delattr(network, GENERATOR)


@contextmanager
def _same_depth(network: Any) -> Iterator[None]:
    """The early exit's generator writes the number of layers, and does not restore it when it is interrupted."""
    config = getattr(network, network.base_model_prefix).config
    depth = getattr(config, "num_hidden_layers", None)
    try:
        yield
    finally:
        if getattr(config, "num_hidden_layers", None) != depth:
            config.num_hidden_layers = depth


def _watch(made: Any, seen: HookedGenerate) -> Any:
    drafts, told = made.get_candidates, made.update_candidate_strategy

    def get_candidates(input_ids: Tensor, **named: Any) -> Any:
        start = time.perf_counter()
        ids, logits = drafts(input_ids, **named)
        seen.steps.append(_step(input_ids, ids, logits, start))
        return ids, logits

    def update_candidate_strategy(input_ids: Tensor, scores: Tensor, num_matches: int) -> Any:
        if seen.steps:
            _finish(seen.steps[-1], input_ids, scores, int(num_matches), seen.greedy)
        return told(input_ids, scores, num_matches)

    made.get_candidates, made.update_candidate_strategy = get_candidates, update_candidate_strategy
    return made


def _step(before: Tensor, after: Tensor, logits: Tensor | None, start: float) -> HookedStep:
    now = time.perf_counter()
    prefix, whole = tuple(before[0].tolist()), tuple(after[0].tolist())
    q = None if logits is None else logits[0].double().softmax(dim=-1).cpu().numpy()
    return HookedStep(prefix, whole[len(prefix) :], q, int(1e6 * (now - start)), now)


def _finish(step: HookedStep, after: Tensor, scores: Tensor, matches: int, greedy: bool) -> None:
    step.verify_us = int(1e6 * (time.perf_counter() - step.began))
    step.committed = tuple(after[0, len(step.prefix) :].tolist())
    rows = _laws(scores[0], greedy)
    step.p = rows[: len(step.committed)]
    step.drafted_p = tuple(float(rows[i, token]) for i, token in enumerate(step.drafted))
    step.matches = matches


def _laws(scores: Tensor, greedy: bool) -> Floats:
    """[N + 1, V] the engine's distributions: the softmax of its scores, or all mass on their argmax."""
    law = scores.double().softmax(dim=-1)
    if greedy:
        law = torch.zeros_like(law).scatter_(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
    rows: Floats = law.cpu().numpy()
    return rows


def _sampling(original: Callable[..., Any], seen: HookedGenerate) -> Callable[..., Any]:
    def sampling(*arguments: Any, **named: Any) -> Any:
        with _Numbers() as numbers:
            tokens, matches = original(*arguments, **named)
        if seen.steps and len(numbers.drawn) == 1:
            seen.steps[-1].uniforms = tuple(numbers.drawn[0].double().flatten().tolist())
        if seen.steps:
            seen.steps[-1].sampled = int(matches)
        return tokens, matches

    return sampling
