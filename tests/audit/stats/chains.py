"""Requests in lockstep over an order-1 target: rejection sampling as in its definition, or broken in one way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.stats.anytime.alternatives import NO_TOKEN, Chunk

GAMMA = 4


@dataclass(frozen=True)
class Toy:
    """p and q [V, V] after each token."""

    p: np.ndarray
    q: np.ndarray


@dataclass(frozen=True)
class Run:
    """[R, T] each: R requests of T tokens. `context` and `before` are the tokens that chose p and its predecessor.

    `refused` is the draft token refused one position earlier, `refused_here` the one refused at the position.
    """

    context: np.ndarray
    before: np.ndarray
    token: np.ndarray
    depth: np.ndarray
    refused: np.ndarray
    refused_here: np.ndarray


def toy(seed, vocabulary=12) -> Toy:
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet(np.full(vocabulary, 0.5), size=vocabulary) for _ in range(2))
    return Toy(p, 0.6 * p + 0.4 * q)


def pick(rng, rows):
    """One token per row of `rows` [R, V], which need not add up to 1."""
    edges = np.cumsum(rows, axis=-1)
    spots = rng.random(len(rows)) * edges[:, -1]
    return (edges < spots[:, None]).sum(axis=-1).clip(0, rows.shape[-1] - 1)


def chain(world, rng, requests, length, fault="", share=1.0) -> Run:
    """Faults: lenient, first, last, hot, argmax, repeat, stale_row, bonus_row, residue, emitted; `share`: how often."""
    kept = []
    everyone, nothing = np.arange(requests), np.full(requests, NO_TOKEN)
    last, before, refused = rng.integers(len(world.p), size=requests), nothing, nothing
    depth = np.zeros(requests, dtype=int)
    for _ in range(length):
        p, q = world.p[last], world.q[last]
        struck = rng.random(requests) < share
        drafted = pick(rng, q)
        accepted = rng.random(requests) * q[everyone, drafted] < p[everyone, drafted]
        accepted |= struck & (fault == "lenient")
        accepted |= ((fault == "first") & (depth == 0)) | ((fault == "last") & (depth == GAMMA - 1))
        bonus = depth == GAMMA
        rejected = ~bonus & ~accepted
        left = np.maximum(p - q, 0.0) + 1e-300
        token = np.where(bonus, pick(rng, p), np.where(accepted, drafted, pick(rng, left)))
        token = np.where(rejected & struck & (fault == "emitted"), drafted, token)
        token = _broken(world, rng, fault, struck, token, last, before, bonus, refused)
        here = np.where(rejected, drafted, NO_TOKEN)
        kept.append((last, before, token, depth, refused, here))
        refused = here
        depth = np.where(bonus | rejected, 0, depth + 1)
        before, last = last, token
    return Run(*(np.stack(column, axis=1) for column in zip(*kept, strict=True)))


def _broken(world, rng, fault, struck, token, last, before, bonus, refused):
    old = world.p[np.maximum(before, 0)]
    if fault == "hot":
        return pick(rng, world.p[last] ** 0.7)
    if fault == "argmax":
        return np.where(struck, world.p[last].argmax(axis=1), token)
    if fault == "repeat":
        return np.where(struck, last, token)
    if fault in ("stale_row", "bonus_row"):
        return np.where(struck & (before >= 0) & (bonus | (fault == "stale_row")), pick(rng, old), token)
    if fault == "residue":
        return np.where(struck & (refused >= 0), refused, token)
    return token


def laws_of(world, run, request):
    """[E, V] p, q and p of the position before, of one request; NaN where there is none."""
    context, before = run.context[request], run.before[request]
    return {
        "p": world.p[context],
        "q": np.where((run.depth[request] == GAMMA)[:, None], np.nan, world.q[context]),
        "previous": np.where((before >= 0)[:, None], world.p[np.maximum(before, 0)], np.nan),
    }


def chunk(world, run, request, here=False) -> Chunk:
    """One request as the dictionary wants it."""
    depth, token, laws = run.depth[request], run.token[request], laws_of(world, run, request)
    return Chunk(
        p=laws["p"],
        q=laws["q"][np.arange(len(token)), token],
        previous=laws["previous"][np.arange(len(token)), token],
        token=token,
        depth=depth,
        bonus=depth == GAMMA,
        last=depth == GAMMA - 1,
        repeated=run.context[request],
        refused=(run.refused_here if here else run.refused)[request],
    )
