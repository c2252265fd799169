"""Observed steps of assisted generation, compared with its output, as steps of a record.

Every fact comes from two places at least: the drafts and the tokens that the generator received, the answer of
`_speculative_sampling`, and the sequence and rows that `generate` returns. If they differ, the record is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from engine.backends.transformers.hooks import HookedGenerate, HookedStep
from engine.core.sequences import agreeing
from engine.core.types import Floats, QKind, Timing
from engine.record.foreign.steps import ForeignStep
from engine.record.trace import Rows

SOURCES = ("get_candidates", "update_candidate_strategy", "_speculative_sampling", "sequences", "logits")


@dataclass(frozen=True, slots=True)
class GenerateOutput:
    """The result of `generate`: E new tokens, [E, V] raw rows, [E, V] processed rows."""

    tokens: tuple[int, ...]
    logits: Rows
    scores: Rows


def mismatches(seen: HookedGenerate, prompt: tuple[int, ...], output: GenerateOutput) -> tuple[str, ...]:
    """The differences between the sources."""
    if not seen.steps:
        return ("no candidate generator was asked for drafts",)
    return (*_of_steps(seen, prompt), *_of_output(seen, output))


def _of_steps(seen: HookedGenerate, prompt: tuple[int, ...]) -> Iterator[str]:
    history = prompt
    for index, step in enumerate(seen.steps):
        if step.prefix != history:
            yield f"step {index}: drafts were asked for after other tokens than were committed"
            return
        if not step.finished:
            yield f"step {index}: nothing was told of what was kept"
            return
        yield from (f"step {index}: {problem}" for problem in _of_step(step, seen.greedy))
        history += step.committed


def _of_step(step: HookedStep, greedy: bool) -> Iterator[str]:
    kept, matches = step.committed, step.matches
    if not kept:
        yield "no token was committed"
    if matches != len(kept) - 1:
        yield f"{matches} drafted tokens were told to match, {len(kept)} tokens were committed"
    if kept[:matches] != step.drafted[:matches]:
        yield "a token that matches is not the drafted one"
    if step.q is not None and len(step.q) != len(step.drafted):
        yield f"{len(step.drafted)} drafted tokens, but {len(step.q)} rows of q"
    if step.sampled is not None and len(step.uniforms) != len(step.drafted):
        yield f"{len(step.drafted)} drafted tokens, but {len(step.uniforms)} acceptance numbers"
    if step.sampled is not None and matches is not None and step.sampled < matches:
        yield f"{step.sampled} drafted tokens were accepted, but {matches} are told to match"
    if not greedy and step.drafted and step.q is not None and step.sampled is None:
        yield "drafts came with q, and were not verified by _speculative_sampling"


def _of_output(seen: HookedGenerate, output: GenerateOutput) -> Iterator[str]:
    committed = tuple(token for step in seen.steps for token in step.committed)
    if committed != output.tokens:
        yield f"{len(committed)} tokens were committed, and {len(output.tokens)} others returned"
    if not len(output.logits) == len(output.scores) == len(output.tokens):
        yield f"{len(output.tokens)} tokens, {len(output.logits)} raw rows, {len(output.scores)} processed rows"


def observed(seen: HookedGenerate, output: GenerateOutput, soft: bool) -> tuple[ForeignStep, ...]:
    """The steps of a generation without mismatches; `soft` where the rule compares p with q."""
    ends = [0, *accumulate(len(step.committed) for step in seen.steps)]
    return tuple(
        _observed(step, output.logits[start:end], soft and not seen.greedy)
        for step, start, end in zip(seen.steps, ends, ends[1:], strict=False)
    )


def _observed(step: HookedStep, rows: Rows, soft: bool) -> ForeignStep:
    kind = QKind.NONE if not step.drafted else QKind.FULL if soft and step.q is not None else QKind.ONE_HOT
    return ForeignStep(
        drafted=step.drafted,
        emitted=step.committed,
        accepted=_accepted(step),
        q_kind=kind,
        q=step.q if kind is QKind.FULL else None,
        logits=rows,
        p=_at(step.p, step.committed),
        examined_p=step.drafted_p,
        examined_q=_at(step.q, step.drafted) if kind is QKind.FULL else (1.0,) * len(step.drafted),
        uniforms=step.uniforms,
        timing=Timing(step.draft_us, step.verify_us),
    )


def _accepted(step: HookedStep) -> int:
    """Drafted tokens that were accepted, before an end cut the step.

    Where tokens are compared, a step that was cut ends with a drafted token, and one that was not ends with another.
    """
    if step.sampled is not None:
        return step.sampled
    return agreeing(step.committed, step.drafted)


def plain(output: GenerateOutput, greedy: bool) -> tuple[ForeignStep, ...]:
    """Plain generation: one token a step."""
    return tuple(
        ForeignStep((), (token,), logits=output.logits[i : i + 1], p=(_chance(output.scores[i], token, greedy),))
        for i, token in enumerate(output.tokens)
    )


def told(output: GenerateOutput) -> tuple[ForeignStep, ...]:
    """The fallback for unknown steps: the tokens, one by one."""
    return tuple(ForeignStep((), (token,)) for token in output.tokens)


def logprobs(output: GenerateOutput) -> tuple[float, ...]:
    """[E] log softmax of the raw rows, at the tokens."""
    rows = output.logits.astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    at = rows[np.arange(len(rows)), list(output.tokens)]
    return tuple((at - np.log(np.exp(rows).sum(axis=-1))).tolist())


def _at(rows: Floats | None, tokens: tuple[int, ...]) -> tuple[float, ...]:
    assert rows is not None
    return tuple(float(row[token]) for row, token in zip(rows, tokens, strict=True))


def _chance(scores: Rows, token: int, greedy: bool) -> float:
    """The engine's probability of a token, by its processed row."""
    if greedy:
        return float(token == int(np.argmax(scores)))
    row = scores.astype(np.float64)
    weights = np.exp(row - row.max())
    return float(weights[token] / weights.sum())
