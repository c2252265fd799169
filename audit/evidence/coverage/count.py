"""Counts of situations in one arm: how often each occurred, and how often each check examined it.

A check examines an occurrence if it examines the token that carries the mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from audit.evidence.coverage.batch import batches
from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.context import PREFIX
from audit.evidence.coverage.groups import Examined
from audit.evidence.coverage.view import ArmFacts, Mask, view_of
from audit.evidence.records import ArmRecord, Level, RequestRecord

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


def steps_known(arm: ArmRecord) -> bool:
    """True if the record shows the steps of a speculating arm; an endpoint's record shows tokens only."""
    return arm_facts(arm).speculates and (arm.ours or arm.level >= Level.L3)


def arm_facts(arm: ArmRecord) -> ArmFacts:
    """What the arm's effective configuration says about its drafts."""
    effective = arm.effective
    speculates = effective.proposer not in (None, "plain")
    return ArmFacts(effective.gamma, effective.proposer_shape == "tree", effective.rows, speculates)


def count(arm: ArmRecord, examined: Mapping[str, Examined]) -> ArmCoverage:
    """Count the situations of an arm's answered requests."""
    if not steps_known(arm):
        return ArmCoverage({}, {check: {} for check in examined}, 0)
    facts, around = arm_facts(arm), batches(arm.requests)
    prefixes = Counter(_prefix(request) for request in arm.requests)
    occurred: Counter[str] = Counter()
    seen: dict[str, Counter[str]] = {name: Counter() for name in examined}
    unknown: set[str] = {name for name, each in CATALOGUE.items() if each.recognise is None}
    accepted = 0
    for request in arm.requests:
        shared = prefixes[_prefix(request)] > 1 and len(request.trace.header.prompt) >= PREFIX
        view = view_of(request, facts, around.get(request.request_id), shared_prefix=shared)
        accepted += int(view.accepted.sum())
        masks = {name: each.recognise(view) for name, each in CATALOGUE.items() if each.recognise is not None}
        unknown |= {name for name, mask in masks.items() if mask is None}
        marks = {name: mask for name, mask in masks.items() if mask is not None}
        occurred.update({name: int(mask.sum()) for name, mask in marks.items()})
        for check, tokens_of in examined.items():
            tokens = tokens_of(request)
            seen[check].update({name: int((mask & tokens).sum()) for name, mask in marks.items()})
    known = [name for name in CATALOGUE if name not in unknown]
    return ArmCoverage(
        {name: occurred[name] for name in known},
        {check: {name: counts[name] for name in known} for check, counts in seen.items()},
        accepted,
    )


def _prefix(request: RequestRecord) -> tuple[int, ...]:
    return request.trace.header.prompt[:PREFIX]


def every_token(request: RequestRecord) -> Mask:
    """All emitted tokens."""
    return np.ones(len(request.tokens), np.bool_)


def no_token(request: RequestRecord) -> Mask:
    """No emitted token."""
    return np.zeros(len(request.tokens), np.bool_)
