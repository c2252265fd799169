"""Second implementation of the block rule, from its definition, for the replay of a whole step.

One decision keeps a prefix of the draft, so the replay needs every row of the step: the rows that decided emitted
tokens and the record's spare rows. This module does not use the engine's verifier. If a stop cuts the emitted tokens
short, the kept prefix must be at least as long as the emitted part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from audit.checks.replay.rules import NAN
from audit.evidence.tally import identical, same
from engine.core.types import Floats, Mask, Protocol, Role
from engine.record.mask_bits import unpacked
from engine.record.trace import Rows, StepView, Trace, steps_of
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import inverse_cdf


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One step: gamma drafted tokens, their q [gamma, V], and p [gamma + 1, V] after each prefix."""

    position: int
    tokens: Sequence[int]
    q: Floats
    p: Floats


@dataclass(frozen=True, slots=True)
class BlockRuling:
    """Decision of the rule: the number of kept tokens, and the token after them."""

    kept: int
    numbers: tuple[float, ...]
    """The acceptance numbers of the gamma places."""
    token: int
    role: Role
    uniform: float
    residual_mass: float


def rule_block(block: BlockStep, randomness: Randomness) -> BlockRuling:
    """Keep the longest prefix i with u_i (R_i + 1 - P_i) < R_i; the whole draft if u_gamma < P_gamma."""
    gamma = len(block.tokens)
    numbers = tuple(randomness.uniform(block.position + i, Purpose.ACCEPT) for i in range(gamma))
    weights = _weights(block)
    kept = 0
    for i in range(1, gamma + 1):
        over = weights[i] if i == gamma else float(_left(block, weights, i).sum())
        total = 1.0 if i == gamma else over + 1.0 - weights[i]
        if numbers[i - 1] * total < over:
            kept = i
    whole = kept == gamma
    left = block.p[gamma] if whole else _left(block, weights, kept)
    mass = float(left.sum())
    u = randomness.uniform(block.position + kept, Purpose.BONUS if whole else Purpose.RESIDUAL)
    role = Role.RECOVERED if not whole else Role.BONUS if gamma else Role.PLAIN
    token = inverse_cdf(left if mass > 0 else block.p[kept], u)
    return BlockRuling(kept, numbers, token, role, u, NAN if whole else mass)


def _weights(block: BlockStep) -> list[float]:
    """P_0 = 1, P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i)); 1 for a draft that its own q excludes."""
    result = [1.0]
    for i, token in enumerate(block.tokens):
        p, q = float(block.p[i, token]), float(block.q[i, token])
        result.append(min(1.0, result[-1] * p / q) if q else 1.0)
    return result


def _left(block: BlockStep, weights: list[float], i: int) -> Floats:
    return np.asarray(np.maximum(weights[i] * block.p[i] - block.q[i], 0.0))


def spare_rows(trace: Trace) -> Iterator[Rows]:
    """Rows of each step that decided no emitted token; empty except under the block rule."""
    start = 0
    for view in steps_of(trace):
        joint = trace.header.protocol is Protocol.BLOCK
        count = 1 + int(trace.n_drafted[view.index]) - int(trace.n_emitted[view.index]) if joint else 0
        yield trace.spare_logits[start : start + count]
        start += count


def row_masks(trace: Trace) -> Iterator[tuple[Mask | None, ...]]:
    """The grammar's masks on all rows of each step, those of emitted tokens first."""
    start = 0
    for view, spare in zip(steps_of(trace), spare_rows(trace), strict=True):
        emitted = (trace.allowed(at) for at in range(view.emitted.start, view.emitted.stop))
        bits = trace.spare_mask_bits[start : start + len(spare)]
        unread = (unpacked(bit, trace.header.vocabulary) for bit in bits) if len(bits) else (None for _ in spare)
        yield (*emitted, *unread)
        start += len(spare)


def block_faults(block: BlockStep | None, trace: Trace, view: StepView, randomness: Randomness) -> Iterator[str]:
    """Differences between a recorded step and the rule."""
    if block is None:
        yield "the block rule examines every drafted token in order, the record does not have them so"
        return
    ruling = rule_block(block, randomness)
    numbers = trace.examined_uniform[view.examined].tolist()
    if not all(map(identical, numbers, ruling.numbers)):
        yield "the acceptance numbers are not those of the key"
    for i, token in enumerate(block.tokens):
        x = view.examined.start + i
        for what, recorded, computed in (
            ("p", trace.examined_p[x], block.p[i]),
            ("q", trace.examined_q[x], block.q[i]),
        ):
            if not same(float(recorded), float(computed[token])):
                yield f"{what} of drafted token {token} recorded {recorded:.10g}, replay gives {computed[token]:.10g}"
    yield from _outcome_faults(block, ruling, trace, view)


def _outcome_faults(block: BlockStep, ruling: BlockRuling, trace: Trace, view: StepView) -> Iterator[str]:
    emitted = view.emitted.stop - view.emitted.start
    accepted = int((trace.role[view.emitted] == Role.ACCEPTED).sum())
    for i in range(emitted):
        row, at = block.p[i], view.emitted.start + i
        if not same(float(trace.p[at]), float(row[trace.token[at]])):
            yield f"p of token {trace.token[at]} recorded {trace.p[at]:.10g}, replay gives {row[trace.token[at]]:.10g}"
    if accepted == emitted:
        # a stop cut the step: the record lacks the rest
        if view.index != trace.steps - 1 or ruling.kept < accepted:
            yield f"{accepted} drafted tokens were kept, the rule keeps {ruling.kept}"
        return
    if accepted != ruling.kept:
        yield f"{accepted} drafted tokens were kept, the rule keeps {ruling.kept}"
        return
    at = view.emitted.stop - 1
    if int(trace.token[at]) != ruling.token:
        yield f"the last token is {trace.token[at]}, the rule gives {ruling.token}"
    role = Role(int(trace.role[at]))
    if role is not ruling.role:
        yield f"the last token's role is {role.name.lower()}, the rule's {ruling.role.name.lower()}"
    if not identical(float(trace.uniform[at]), ruling.uniform):
        yield f"the last token's number is {trace.uniform[at]:.10g}, the key gives {ruling.uniform:.10g}"
    if not same(float(trace.residual_mass[view.index]), ruling.residual_mass):
        yield f"residual mass recorded {trace.residual_mass[view.index]:.10g}, replay gives {ruling.residual_mass:.10g}"
