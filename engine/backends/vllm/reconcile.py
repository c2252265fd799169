"""Compares independent accounts of the same request.

The sources are the worker's hook, the scheduler's hook, the tokens that the user received, vLLM's public metrics of
the request, and its counters. A difference means that at least one of them is wrong, so that no record built on them
is evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.vllm.spool import SpooledStep
from engine.core.sequences import agreeing


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Public metrics of one request: for each step with a draft, the numbers of drafted and accepted tokens."""

    accepted: tuple[int, ...]
    drafted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceReports:
    """Each source's account of one request; None if a source gives none.

    open_end: a stop string ended it, which the engine's core learns later: it may have continued for some steps.
    """

    tokens: tuple[int, ...]
    worker: tuple[SpooledStep, ...] | None
    scheduler: tuple[SpooledStep, ...] | None
    metrics: RequestMetrics | None
    open_end: bool = False


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The compared sources, and every difference in words."""

    sources: tuple[str, ...]
    mismatches: tuple[str, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """The form stored with the request."""
        return {"sources": list(self.sources), "mismatches": list(self.mismatches)}


NOTHING: Final = Reconciliation((), ())


def reconcile(told: SourceReports) -> Reconciliation:
    """Compare all sources of one request."""
    witnesses = {"worker": told.worker, "scheduler": told.scheduler}
    heard = {name: steps for name, steps in witnesses.items() if steps is not None}
    result = [line for name, steps in heard.items() for line in _against_tokens(name, steps, told)]
    if told.worker is not None and told.scheduler is not None:
        result += _against_each_other(told.worker, told.scheduler)
    steps = told.worker if told.worker is not None else told.scheduler
    if told.metrics is not None and steps is not None:
        result += _against_metrics(steps, told)
    sources = ("output", *heard, *(("metrics",) if told.metrics is not None else ()))
    return Reconciliation(sources, tuple(result))


def _against_tokens(name: str, steps: Sequence[SpooledStep], told: SourceReports) -> list[str]:
    """The steps' tokens begin with the user's; only the last step may hold more."""
    emitted = [token for step in steps for token in step.emitted]
    if tuple(emitted[: len(told.tokens)]) != told.tokens:
        at = agreeing(emitted, told.tokens)
        return [f"{name}: token {at} is {_at(emitted, at)}, the output has {_at(told.tokens, at)}"]
    before_last = sum(len(step.emitted) for step in steps[:-1])
    if told.tokens and before_last >= len(told.tokens) and not told.open_end:
        return [f"{name}: {len(steps)} steps, but the output's {len(told.tokens)} tokens end before the last one"]
    return []


def _against_each_other(worker: Sequence[SpooledStep], scheduler: Sequence[SpooledStep]) -> list[str]:
    if len(worker) != len(scheduler):
        return [f"worker: {len(worker)} steps, scheduler: {len(scheduler)}"]
    for i, (ours, theirs) in enumerate(zip(worker, scheduler, strict=True)):
        if ours.emitted != theirs.emitted:
            return [f"step {i}: worker emitted {list(ours.emitted)}, scheduler {list(theirs.emitted)}"]
        if not _same_drafts(ours.drafted, theirs.drafted):
            return [f"step {i}: worker drafted {list(ours.drafted)}, scheduler {list(theirs.drafted)}"]
    return []


def _same_drafts(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """An asynchronous scheduler knows the number of drafted tokens but not yet the tokens themselves: they are -1."""
    same = all(a == b or b < 0 for a, b in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and same


def _against_metrics(steps: Sequence[SpooledStep], told: SourceReports) -> list[str]:
    assert told.metrics is not None
    counted = [(step.accepted, len([token for token in step.drafted if token >= 0])) for step in steps if step.drafted]
    said = list(zip(told.metrics.accepted, told.metrics.drafted, strict=False))
    if said == counted or (told.open_end and said == counted[: len(said)]):
        return []
    at = agreeing(counted, said)
    return [
        f"metrics: step with drafts {at} has (accepted, drafted) {_at(said, at)}, recorded {_at(counted, at)}; "
        f"{len(said)} and {len(counted)} such steps"
    ]


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else "nothing"


def reconcile_counters(steps: Sequence[SpooledStep], counters: Mapping[str, int]) -> Reconciliation:
    """Compare all steps of one call with the engine's speculation counters, if it has any."""
    with_drafts = [step for step in steps if step.drafted]
    own = {
        "drafts": len(with_drafts),
        "draft_tokens": sum(sum(token >= 0 for token in step.drafted) for step in with_drafts),
        "accepted_tokens": sum(step.accepted for step in with_drafts),
    }
    told = {name: counters[name] for name in own if name in counters}
    result = (f"counter {name}: {said}, recorded {own[name]}" for name, said in told.items() if said != own[name])
    return Reconciliation(("counters",), tuple(result)) if told else NOTHING
