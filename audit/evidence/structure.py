"""Rules between a trace's tokens that hold whatever the random numbers were.

Positions follow each other, an accepted token was drafted, only the last step may be cut short, nothing follows an end
token, and the finish reason agrees with the tokens. Level `tokens` is enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.evidence.records import RequestRecord
from audit.evidence.streams import stream_of
from engine.core.types import FinishReason, Protocol, Role
from engine.record.columns import entries_before, numbered
from engine.record.trace import StepView, Trace, steps_of
from engine.stream.interface import ENDING


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation; `step` counts from 0."""

    step: int
    message: str


def structure_faults(request: RequestRecord) -> Iterator[Violation]:
    """Every contradiction of one request with a well-formed trace."""
    trace = request.trace
    expected = len(trace.header.prompt) + entries_before(trace.n_emitted)
    for view in steps_of(trace, np.flatnonzero(_suspect(trace, expected)).tolist()):
        begin = int(expected[view.index])
        if view.position != begin:
            yield Violation(
                view.index, f"the step begins at position {view.position}, the tokens before end at {begin}"
            )
        yield from _path_faults(trace, view)
        yield from _count_faults(trace, view)
    yield from _end_faults(request)


def _suspect(trace: Trace, expected: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[S] steps that may have a fault; every step of a trace with a branching tree."""
    if not np.array_equal(trace.node_parent, numbered(trace.n_drafted).local - 1):
        return np.ones(trace.steps, dtype=np.bool_)
    emitted, count = numbered(trace.n_emitted), trace.steps
    wrong = np.bincount(emitted.step[~_in_place(trace)], minlength=count) > 0
    taken = np.bincount(numbered(trace.n_examined).step, trace.examined_accepted, minlength=count)
    kept = np.bincount(emitted.step[trace.role == Role.ACCEPTED], minlength=count)
    return np.asarray(wrong | (taken != kept) | (trace.position != expected))


def _in_place(trace: Trace) -> NDArray[np.bool_]:
    """[E] true for tokens without a path fault, if all trees are chains."""
    emitted = numbered(trace.n_emitted)
    step, depth = emitted.step, emitted.local
    drafted = trace.n_drafted[step]
    offered, last = depth < drafted, depth == trace.n_emitted[step] - 1
    first = entries_before(trace.n_drafted)
    kept = np.zeros(len(step), dtype=np.bool_)
    kept[offered] = trace.node_token[(first[step] + depth)[offered]] == trace.token[offered]
    going_on = kept & (trace.role == Role.ACCEPTED) & (~last | (step == trace.steps - 1))
    ending = np.where(offered, Role.RECOVERED, np.where(drafted > 0, Role.BONUS, Role.PLAIN))
    # a rule that compares tokens keeps a drafted token that it emits
    matching = trace.header.protocol in (Protocol.GREEDY, Protocol.GUMBEL)
    ends = last & (trace.role == ending) & ~(kept & matching)
    return np.asarray((trace.row == depth) & (going_on | ends))


def _path_faults(trace: Trace, view: StepView) -> Iterator[Violation]:
    """Violations where emitted tokens or their roles do not follow the step's tree."""
    parents = [int(parent) for parent in trace.node_parent[view.nodes]]
    if trace.header.protocol in (Protocol.CHAIN, Protocol.BLOCK) and parents != list(range(-1, len(parents) - 1)):
        yield Violation(view.index, f"the {trace.header.protocol} rule was applied to a branching tree")
    tokens = trace.node_token[view.nodes]
    node: int | None = -1
    for at in range(view.emitted.start, view.emitted.stop):
        token, role, row = int(trace.token[at]), Role(int(trace.role[at])), int(trace.row[at])
        if node is None:
            yield Violation(view.index, f"token {token} follows a token that ends the step")
            return
        if row != node + 1:
            yield Violation(
                view.index, f"token {token} was decided by row {row}, its place in the tree is row {node + 1}"
            )
        offered = [child for child, parent in enumerate(parents) if parent == node]
        kept = [child for child in offered if int(tokens[child]) == token]
        if role is Role.ACCEPTED and not kept:
            yield Violation(view.index, f"token {token} is recorded as accepted but was not drafted there")
        if role is Role.RECOVERED and kept and trace.header.protocol in (Protocol.GREEDY, Protocol.GUMBEL):
            yield Violation(view.index, f"token {token} was drafted there but is recorded as recovered")
        if role is not Role.ACCEPTED and role is not _last_role(offered, parents):
            yield Violation(view.index, f"token {token} has role {role.name.lower()}, its place makes it another")
        node = kept[0] if role is Role.ACCEPTED and kept else None
    cut = view.index == trace.steps - 1
    if node is not None and not cut:
        yield Violation(view.index, "the step ends with an accepted token although the generation goes on")


def _count_faults(trace: Trace, view: StepView) -> Iterator[Violation]:
    accepted = int(trace.examined_accepted[view.examined].sum())
    emitted = int((trace.role[view.emitted] == Role.ACCEPTED).sum())
    if accepted != emitted:
        yield Violation(view.index, f"{accepted} drafted tokens were accepted, {emitted} were emitted as accepted")


def _last_role(offered: list[int], parents: list[int]) -> Role:
    if offered:
        return Role.RECOVERED
    return Role.BONUS if parents else Role.PLAIN


def _end_faults(request: RequestRecord) -> Iterator[Violation]:
    trace = request.trace
    header, last = trace.header, max(0, trace.steps - 1)
    if request.tokens != trace.tokens:
        yield Violation(last, "the request's tokens are not those of its record")
    if request.finish_reason != header.finish_reason:
        yield Violation(last, f"finish reason {request.finish_reason}, the record says {header.finish_reason}")
    if not trace.steps:
        yield Violation(0, "the record holds no step")
        return
    sampling = trace.header.sampling
    ends = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else trace.header.eos_ids)]
    early = np.flatnonzero(np.isin(trace.token[:-1], ends))
    for at, step in zip(early.tolist(), numbered(trace.n_emitted).step[early].tolist(), strict=True):
        yield Violation(step, f"tokens follow the end token {int(trace.token[at])}")
    message = _reason_fault(trace)
    if message is not None:
        yield Violation(last, message)


def _reason_fault(trace: Trace) -> str | None:
    """Compare the finish reason with the tokens: end tokens first, then stop tokens and strings, then the length."""
    header, sampling = trace.header, trace.header.sampling
    count, last = len(trace.token), int(trace.token[-1])
    ended = last in header.eos_ids and not sampling.ignore_eos
    if count > sampling.max_new_tokens:
        return f"{count} tokens were generated, max_new_tokens is {sampling.max_new_tokens}"
    filtered = header.finish_reason is FinishReason.FILTER
    if ended != (header.finish_reason is FinishReason.EOS) and not (ended and filtered):
        return f"finish reason {header.finish_reason}, but the last token is {last}"
    if header.finish_reason is FinishReason.STOP and last not in sampling.stop_token_ids and not sampling.stop:
        return f"finish reason stop, but token {last} is no stop token and there are no stop strings"
    if filtered and not _filtered(trace):
        return "finish reason filter, but no filter on record ended the response"
    if header.finish_reason is FinishReason.LENGTH:
        if last in sampling.stop_token_ids:
            return f"finish reason length, but the last token {last} is a stop token"
        if count != sampling.max_new_tokens:
            return f"finish reason length after {count} of {sampling.max_new_tokens} tokens"
    return None


def _filtered(trace: Trace) -> bool:
    """True if a filter decided at the last token to end the response."""
    stream = stream_of(trace.header)
    last = len(trace.token) - 1
    return stream is not None and any(
        decision.action in ENDING and decision.token == last for decision in stream.decisions
    )
