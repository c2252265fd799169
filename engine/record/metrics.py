"""Acceptance figures from traces, one definition each.

Acceptance length is one plus the accepted tokens per drafting step, so that it
counts the recovered or bonus token; tokens per forward counts the emitted tokens per step, steps without a draft
included. Per-position rates are unconditional: the share of drafting steps that kept their i-th token.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from engine.core.types import Role
from engine.record.trace import Trace


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over a set of traces; rates are derived.

    kept[i] of `drafting_steps` kept their drafted token number i (from 0);
    histogram[a] of all steps accepted exactly a drafted tokens.
    """

    steps: int
    drafted: int
    accepted: int
    emitted: int
    drafting_steps: int
    kept: tuple[int, ...]
    histogram: tuple[int, ...]

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted of drafted tokens, pooled; NaN without drafts."""
        return self.accepted / self.drafted if self.drafted else float("nan")

    @property
    def tokens_per_forward(self) -> float:
        """Emitted tokens per target forward, steps without a draft included."""
        return self.emitted / self.steps if self.steps else float("nan")

    @property
    def acceptance_length(self) -> float:
        """Accepted tokens and one per drafting step; NaN without drafts."""
        return 1 + self.accepted / self.drafting_steps if self.drafting_steps else float("nan")


def accepted_by_step(trace: Trace) -> np.ndarray:
    """[S] drafted tokens that each step emitted."""
    step = np.repeat(np.arange(trace.steps), trace.n_emitted)
    return np.bincount(step[trace.role == Role.ACCEPTED], minlength=trace.steps)


def acceptance(traces: Iterable[Trace]) -> Acceptance:
    """The counts of all traces together (chains: the i-th drafted token is at depth i)."""
    kept_traces = list(traces)
    drafted = np.concatenate([trace.n_drafted for trace in kept_traces] or [np.empty(0, int)]).astype(np.int64)
    accepted = np.concatenate([accepted_by_step(trace) for trace in kept_traces] or [np.empty(0, int)])
    deepest = int(drafted.max(initial=0))
    return Acceptance(
        steps=len(drafted),
        drafted=int(drafted.sum()),
        accepted=int(accepted.sum()),
        emitted=sum(len(trace.token) for trace in kept_traces),
        drafting_steps=int(np.sum(drafted > 0)),
        kept=tuple(int(np.sum(accepted > i)) for i in range(deepest)),
        histogram=tuple(int(n) for n in np.bincount(accepted, minlength=deepest + 1)),
    )
