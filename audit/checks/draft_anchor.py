"""Drafts in full: the recorded drafts are those that the proposer makes for this text alone.

Claim: drafts. Null: at every step with room for a draft, the recorded one is what a fresh proposer drafts after the
same history, with the same random numbers and no other request. Evidence: the redraft arm, in which the proposer runs
again along the recorded tokens and decisions. Each step is compared until a draft differs, because a proposer's later
drafts may depend on it. Statistic: steps that differ; a step is a fault if q of a drafted token moved by more than
rounding explains, or if drafts that only copy tokens differ at all. Another difference may be rounding (a random number
between two tokens, two logits that tie), so it is a fault only if such steps are significantly more than the margin.
Effect: share of steps that differ; bound: its Clopper-Pearson upper bound over steps, as if steps failed independently.
Cannot see: a fault of the proposer's own code or weights that both runs share, and drafts that depend on other requests
by declaration. A draft from a stale or foreign state keeps the law: this check, not `law`, shows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from audit.checks.base.interface import Check, Design
from audit.evidence.coverage.examined import redrafted
from audit.evidence.coverage.groups import Group
from audit.evidence.records import ArmKind, Evidence, Level, RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import lower_bound, upper_bound
from audit.stats.power import zero_need
from audit.stats.sample_size import SampleSize
from engine.backends.evidence import Part
from engine.core.types import QKind, Tree
from engine.record.columns import shape_fault
from engine.record.trace import StepView, steps_of

HALF: Final = ("bfloat16", "float16")
SHARED_STATE: Final = "the proposer declares that its drafts depend on other requests too"
NO_REDRAFT: Final = NoEvidence("there is no redraft arm: the backend cannot draft again along a record")
NO_DRAFTS: Final = NoEvidence("the record does not show what was drafted")


class Likeness(Enum):
    """How a recorded draft compares with the one made again."""

    SAME = "same"
    UNLIKE = "unlike"
    """Other tokens or another length, which rounding may explain."""
    WRONG = "wrong"
    """Another law, or other tokens where nothing rounds."""


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step. `distance` is the largest total variation between two rows of q, 0 without any."""

    likeness: Likeness
    distance: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """The steps of one request, up to and including the first that differs."""

    request: str
    steps: tuple[ComparedStep, ...]
    recorded: int
    """Steps on record, of which the last ones may not be compared."""


def _applies(evidence: Evidence) -> str | None:
    if evidence.candidate.effective.shares_state:
        return SHARED_STATE
    if ArmKind.REDRAFT not in evidence.companions:
        return NO_REDRAFT
    return None if evidence.candidate.effective.proposer is not None else NO_DRAFTS


def _foresee(params: Params, design: Design) -> str | None:
    del params
    if design.shown.shares:
        return SHARED_STATE
    return None if design.shown.gives(Part.REDRAFT) else NO_REDRAFT


def compare(recorded: RequestRecord, again: RequestRecord, tolerance: float, *, copies: bool) -> ComparedRequest:
    """Compare every step that had room for a draft until one differs; to draft nothing is a decision too.

    Args:
        recorded: the candidate's request; its trace is well-formed.
        again: the same request with the drafts made again.
        tolerance: largest total variation between two rows of q that rounding explains.
        copies: the drafts are a function of the tokens alone, so that nothing rounds.
    """
    steps: list[ComparedStep] = []
    pairs = zip(steps_of(recorded.trace), steps_of(again.trace), strict=False)
    for ours, theirs in pairs:
        step = _compare_step(ours, theirs, tolerance)
        if step is None:
            continue
        if copies and step.likeness is Likeness.UNLIKE:
            step = dataclasses.replace(step, likeness=Likeness.WRONG)
        steps.append(step)
        if step.likeness is not Likeness.SAME:
            break
    return ComparedRequest(recorded.request_id, tuple(steps), recorded.trace.steps)


def _compare_step(ours: StepView, theirs: StepView, tolerance: float) -> ComparedStep | None:
    draft, made = ours.tree, theirs.tree
    if not (draft.tokens or made.tokens or _had_room(ours)):
        return None
    if draft.tokens and made.tokens and ours.q_kind is not theirs.q_kind:
        kinds = f"drafts are recorded as {ours.q_kind.name}, made again as {theirs.q_kind.name}"
        return ComparedStep(Likeness.WRONG, 0.0, f"position {ours.position}: {kinds}")
    worst = 0.0
    for node, distance in _distances(ours, theirs):
        worst = max(worst, distance)
        if not distance <= tolerance:
            at = f"position {ours.position}, drafted token {node + 1}"
            return ComparedStep(Likeness.WRONG, worst, f"{at}: q moved by {distance:.3g} in total variation")
    if draft == made:
        return ComparedStep(Likeness.SAME, worst)
    return ComparedStep(Likeness.UNLIKE, worst, f"position {ours.position}: {_shown(draft)}, made again {_shown(made)}")


def _had_room(view: StepView) -> bool:
    """True if the step may emit more than the request's last token."""
    header = view.trace.header
    return view.position < len(header.prompt) + header.sampling.max_new_tokens - 1


def _shown(draft: Tree) -> str:
    return f"drafted {list(draft.tokens)}" if draft.tokens else "drafted nothing"


def _distances(ours: StepView, theirs: StepView) -> Iterator[tuple[int, float]]:
    """Node and total variation between its two rows of q, for examined nodes after the same earlier nodes."""
    recorded, again, draft, made = ours.trace, theirs.trace, ours.tree, theirs.tree
    if ours.q_kind is not QKind.FULL or not len(recorded.q_rows) or not len(again.q_rows):
        return
    for x in range(ours.examined.start, ours.examined.stop):
        node = int(recorded.examined_node[x])
        if node >= len(made.tokens) or draft.tokens[:node] != made.tokens[:node]:
            return
        if draft.parents[: node + 1] != made.parents[: node + 1]:
            return
        # every node made again is examined, in order
        other = again.q_rows[theirs.examined.start + node]
        yield node, 0.5 * float(np.abs(recorded.q_rows[x] - other).sum())


def _run(evidence: Evidence, params: Params) -> CheckResult:
    again = evidence.companions[ArmKind.REDRAFT]
    facts, others = again.effective.facts, again.by_key()
    tolerance = float(params["half_tolerance" if _halves(facts.get("draft")) else "tolerance"])
    compared = []
    for request in evidence.candidate.requests:
        other = others.get(request.key)
        if other is None:
            continue
        damage = shape_fault(request.trace)
        if damage is not None:
            return CheckResult(Verdict.INCONCLUSIVE, f"{request.request_id} has an unreadable record: {damage}")
        compared.append(compare(request, other, tolerance, copies=facts.get("copies") is True))
    return _result(compared, params)


def _halves(draft: object) -> bool:
    return isinstance(draft, dict) and draft.get("dtype") in HALF


def _result(compared: list[ComparedRequest], params: Params) -> CheckResult:
    confidence, margin = float(params["confidence"]), float(params["margin"])
    steps = [step for item in compared for step in item.steps]
    wrong, unlike = (sum(step.likeness is kind for step in steps) for kind in (Likeness.WRONG, Likeness.UNLIKE))
    n, differing = len(steps), wrong + unlike
    bound = upper_bound(differing, n, confidence) if n else 1.0
    broken = wrong > 0 or lower_bound(unlike, n, confidence) > margin if n else False
    findings = [
        Finding(item.request, len(item.steps) - 1, step.message)
        for item in compared
        for step in item.steps
        if step.likeness is Likeness.WRONG or (broken and step.likeness is Likeness.UNLIKE)
    ]
    worst = max((step.distance for step in steps), default=0.0)
    certified = n > 0 and bound <= margin
    return CheckResult(
        verdict=Verdict.FAULT if broken else Verdict.CERTIFIED if certified else Verdict.INCONCLUSIVE,
        summary=_summary(compared, findings, differing, bound, worst, certified=certified),
        n=n,
        statistic=float(differing),
        effect=differing / n if n else None,
        bound=bound if n else None,
        margin=margin,
        findings=tuple(findings[: int(params["max_findings"])]),
        details={
            "steps": n,
            "requests": len(compared),
            "wrong": wrong,
            "unlike": unlike,
            "largest_distance": worst,
            "steps_after_a_difference": sum(item.recorded - len(item.steps) for item in compared if _parted(item)),
        },
    )


def _parted(compared: ComparedRequest) -> bool:
    return bool(compared.steps) and compared.steps[-1].likeness is not Likeness.SAME


def _summary(
    compared: list[ComparedRequest],
    findings: list[Finding],
    differing: int,
    bound: float,
    worst: float,
    *,
    certified: bool,
) -> str:
    n = sum(len(item.steps) for item in compared)
    if findings:
        first = findings[0]
        text = f"the drafts of {differing} of {n} steps are not the proposer's own for this text"
        return f"{text}; first in {first.request}: {first.message}"
    if not n:
        return "no step of the requests that were drafted again had room for a draft"
    differ = f"{differing} differ" if differing else "none differs"
    text = f"{n} steps of {len(compared)} requests drafted again, {differ}"
    text = f"{text}; at most a share of {bound:.2g} does, q moves by at most {worst:.2g}"
    return text if certified else f"{text}; not within the margin: more steps are needed"


def _plan(params: Params, design: Design) -> SampleSize | None:
    if not design.gamma:
        return None
    return dataclasses.replace(zero_need(float(params["margin"]), 1.0 - float(params["confidence"])), unit="steps")


CHECK = Check(
    name="draft_anchor",
    claim="drafts",
    needs=Level.L0,
    defaults={"margin": 0.1, "tolerance": 0.001, "half_tolerance": 0.05, "confidence": 0.99, "max_findings": 20},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="every draft is the one that the proposer makes for this text alone",
    effect="share of steps whose drafts differ",
    plan=_plan,
    companions=(ArmKind.REDRAFT,),
    # a sample of the requests need not meet the rarer situations of the other groups
    covers=frozenset({Group.BATCH, Group.CONTEXTS}),
    examines=redrafted,
)
