"""Counts of situations in one arm: how often each occurred, and how often each check examined it.

A check examines an occurrence if it examines the token that carries the mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from audit.evidence.coverage.batch import Stay, batches, stay_of
from audit.evidence.coverage.catalogue import CATALOGUE, Recogniser
from audit.evidence.coverage.context import PREFIX
from audit.evidence.coverage.groups import Examined, Group
from audit.evidence.coverage.scope import ArmScope
from audit.evidence.coverage.view import ArmFacts, Mask, RequestView, view_of
from audit.evidence.records import ArmRecord, Level, RequestRecord
from engine.record.columns import numbered
from engine.record.effective import Effective

CHAIN: Final = "chain"
TREE: Final = "tree"

Counted = Mapping[str, int]
"""Occurrences by situation; a situation that the record cannot show is missing."""


@dataclass(frozen=True, slots=True)
class ArmCoverage:
    """One arm's situations."""

    occurred: Counted
    examined: Mapping[str, Counted]
    """By check."""
    accepted: int
    """Emitted tokens that were drafted."""
    scope: ArmScope = field(default_factory=ArmScope)


UNCOUNTED: Final = ArmCoverage({}, {}, 0)
"""The coverage of an arm that nobody counts."""


def steps_known(arm: ArmRecord) -> bool:
    """True if the record shows the steps of a speculating arm; an endpoint's record shows tokens only."""
    return arm_facts(arm).speculates and (arm.ours or arm.level >= Level.L3)


def arm_facts(arm: ArmRecord) -> ArmFacts:
    """Facts about drafts in the arm's effective configuration."""
    effective = arm.effective
    speculates = effective.proposer not in (None, "plain")
    return ArmFacts(effective.gamma, effective.proposer_shape == "tree", effective.rows, speculates)


def count(arm: ArmRecord, examined: Mapping[str, Examined]) -> ArmCoverage:
    """Count the situations of an arm's answered requests. Decodes each trace once.

    The situations of a batch wait until all requests are read. Their views keep the layout of the steps, not the trace.
    """
    if not steps_known(arm):
        return ArmCoverage({}, {check: {} for check in examined}, 0, ScopeCount().scope(arm.effective))
    facts, tally, extremes = arm_facts(arm), _Tally.of(examined), ScopeCount()
    prefixes = Counter(_prefix(request) for request in arm.requests)
    stays: list[Stay] = []
    waiting: list[tuple[RequestView, Mapping[str, Mask]]] = []
    for index, request in enumerate(arm.requests):
        shared = prefixes[_prefix(request)] > 1 and len(request.trace.header.prompt) >= PREFIX
        view = view_of(request, facts, shared_prefix=shared)
        masks = {check: tokens_of(request) for check, tokens_of in examined.items()}
        tally.accepted += int(view.accepted.sum())
        tally.add(view, masks, BY_REQUEST)
        extremes.add(request)
        stay = stay_of(request)
        stays += [] if stay is None else [stay]
        unread = arm.requests[index]
        waiting.append((replace(view, request=unread, trace=unread.trace), masks))
    around = batches(stays)
    for view, tokens in waiting:
        tally.add(replace(view, batch=around.get(view.request.request_id)), tokens, BY_BATCH)
    return replace(tally.coverage(), scope=extremes.scope(arm.effective))


@dataclass(slots=True)
class _Tally:
    """Sums over the requests so far."""

    occurred: Counter[str]
    seen: Mapping[str, Counter[str]]
    unknown: set[str]
    accepted: int = 0

    @classmethod
    def of(cls, checks: Iterable[str]) -> _Tally:
        return cls(Counter(), {name: Counter() for name in checks}, set())

    def add(self, view: RequestView, examined: Mapping[str, Mask], recognisers: Mapping[str, Recogniser]) -> None:
        """Count a request's marks of some situations."""
        masks = {name: recognise(view) for name, recognise in recognisers.items()}
        self.unknown |= {name for name, mask in masks.items() if mask is None}
        marks = {name: mask for name, mask in masks.items() if mask is not None}
        self.occurred.update({name: int(mask.sum()) for name, mask in marks.items()})
        for check, tokens in examined.items():
            self.seen[check].update({name: int((mask & tokens).sum()) for name, mask in marks.items()})

    def coverage(self) -> ArmCoverage:
        """The sums of the situations that every request showed."""
        known = [name for name in CATALOGUE if name not in self.unknown]
        return ArmCoverage(
            {name: self.occurred[name] for name in known},
            {check: {name: counts[name] for name in known} for check, counts in self.seen.items()},
            self.accepted,
        )


def _recognisers(*, batch: bool) -> Mapping[str, Recogniser]:
    return {name: item.recognise for name, item in CATALOGUE.items() if (item.group is Group.BATCH) is batch}


BY_REQUEST: Final = _recognisers(batch=False)
"""Situations that one request shows."""
BY_BATCH: Final = _recognisers(batch=True)
"""Situations that depend on the other rows of the batch."""


def _prefix(request: RequestRecord) -> tuple[int, ...]:
    return request.trace.header.prompt[:PREFIX]


def every_token(request: RequestRecord) -> Mask:
    """All emitted tokens."""
    return np.ones(len(request.tokens), np.bool_)


def no_token(request: RequestRecord) -> Mask:
    """No emitted token."""
    return np.zeros(len(request.tokens), np.bool_)


@dataclass(slots=True)
class ScopeCount:
    """Extremes over the requests so far."""

    smallest: int | None = None
    largest: int | None = None
    longest: int | None = None
    tree: bool = False

    def add(self, request: RequestRecord) -> None:
        """Count one request's steps."""
        trace = request.trace
        if not trace.steps:
            return
        low, high = int(trace.batch.min()), int(trace.batch.max())
        self.smallest, self.largest = min(self.smallest or low, low), max(self.largest or high, high)
        self.longest = max(self.longest or 0, int(trace.n_drafted.max()))
        before = numbered(trace.n_drafted.astype(np.int64)).local - 1
        self.tree |= bool(np.any(trace.node_parent != before))

    def scope(self, effective: Effective) -> ArmScope:
        """The extremes beside the engine's report."""
        return ArmScope(
            smallest_batch=self.smallest,
            largest_batch=self.largest,
            longest_draft=self.longest,
            shape=(TREE if self.tree else CHAIN) if self.longest else None,
            numerics=None if effective.numerics is None else effective.numerics.mode,
            device=_device(effective),
        )


def _device(effective: Effective) -> str | None:
    """The device of the target, by whichever of its facts names one."""
    facts = [effective.facts.get("target"), effective.facts, effective.in_effect, *effective.facts.values()]
    named = (fact.get("device") for fact in facts if isinstance(fact, Mapping))
    return next((device for device in named if isinstance(device, str)), None)
