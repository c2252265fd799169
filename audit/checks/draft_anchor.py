"""Drafts in full: the recorded drafts are those that the proposer makes for this text alone.

Claim: drafts. Null: at every step with room for a draft, the recorded one is what a fresh proposer drafts after the
same history, with the same random numbers and no other request. Evidence: the redraft arm, in which the proposer runs
again along the recorded tokens, drafts and decisions, so that a difference hides nothing behind it. Statistic: steps
that differ, in tokens, tree or length. A difference is rounding where the draft's own lead is within the noise of its
numerics: the total variation by which q would have to move for the recorded choice to be its own. The noise is 0 where
the numerics promise equal bits, where models are scripted and where drafts copy tokens. Any other difference is a fault
at its first occurrence, and so is a record that cannot be drafted again. Effect: share of steps that differ; bound: its
Clopper-Pearson upper bound over steps, as if steps failed independently; the bound over requests is stated beside it.
Cannot see: a fault of the proposer's own code or weights that both runs share, and drafts that depend on other requests
by declaration. A draft from a stale or foreign state keeps the law: this check, not `law`, shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np

from audit.checks.base.interface import Check, Design
from audit.checks.base.plans import none_of
from audit.evidence.coverage.examined import redrafted
from audit.evidence.coverage.groups import Group
from audit.evidence.precision import is_half
from audit.evidence.records import ArmKind, Evidence, RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import lower_bound, upper_bound
from engine.backends.evidence import Part
from engine.core.types import Floats, QKind, Tree
from engine.record.columns import shape_fault
from engine.record.trace import PARTED, StepView, Trace, steps_of

EQUAL: Final = 1e-9
"""Total variation between two rows of q that the same logits give, in the order of their sums."""
SHARED_STATE: Final = "the proposer declares that its drafts depend on other requests too"
NO_REDRAFT: Final = NoEvidence("there is no redraft arm: the backend cannot draft again along a record")
NO_DRAFTS: Final = NoEvidence("the record does not show what was drafted")


class Likeness(Enum):
    """How a recorded draft compares with the one made again."""

    SAME = "same"
    ROUNDED = "rounded"
    """Other tokens or another length, within the noise of the numerics."""
    UNLIKE = "unlike"
    """The same from a proposer whose leads are not known, in numerics that round."""
    WRONG = "wrong"
    """Another draft, and no rounding explains it."""


@dataclass(frozen=True, slots=True)
class DraftNoise:
    """The limits of what rounding can do to a draft.

    tolerance: largest total variation between two rows of q, and largest lead that it overturns; 0 where nothing
    rounds.
    measured: the lead of every choice is known.
    """

    tolerance: float
    measured: bool = True


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step. `distance` is the largest total variation between two rows of q, 0 without any."""

    step: int
    likeness: Likeness
    distance: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """The steps of one request that had room for a draft. After a step that is `UNLIKE` none is compared."""

    request: str
    steps: tuple[ComparedStep, ...]

    @property
    def differs(self) -> bool:
        """True if some step differs."""
        return any(step.likeness is not Likeness.SAME for step in self.steps)


def _applies(evidence: Evidence) -> str | None:
    if evidence.candidate.effective.shares_state:
        return SHARED_STATE
    if ArmKind.REDRAFT not in evidence.companions:
        return NO_REDRAFT
    return None if evidence.candidate.effective.proposer is not None else NO_DRAFTS


def _foresee(_params: Params, design: Design) -> str | None:
    if design.shown.shares:
        return SHARED_STATE
    return None if design.shown.gives(Part.REDRAFT) else NO_REDRAFT


def compare(recorded: RequestRecord, again: RequestRecord, noise: DraftNoise) -> ComparedRequest:
    """Compare every step that had room for a draft; to draft nothing is a decision too.

    Args:
        recorded: the candidate's request; its trace is well-formed.
        again: the same request with the drafts made again.
        noise: what rounding explains.
    """
    steps: list[ComparedStep] = []
    leads = _leads(again)
    for ours, theirs in zip(steps_of(recorded.trace), steps_of(again.trace), strict=False):
        if not (ours.tree.tokens or theirs.tree.tokens or _had_room(ours)):
            continue
        steps.append(_compare_step(ours, theirs, leads.get(ours.index, {}), noise))
        if steps[-1].likeness is Likeness.UNLIKE:
            # what the proposer keeps of its own draft is no longer what it kept then
            break
    else:
        if again.trace.steps < recorded.trace.steps:
            message = "the step contradicts itself, so that nothing can be drafted from it on"
            steps.append(ComparedStep(again.trace.steps, Likeness.WRONG, 0.0, message))
    return ComparedRequest(recorded.request_id, tuple(steps))


def _leads(again: RequestRecord) -> dict[int, dict[int, float]]:
    """By step and node: the lead of every choice that is not the recorded one."""
    leads: dict[int, dict[int, float]] = {}
    for step, node, lead in again.trace.header.facts.get(PARTED, ()):
        leads.setdefault(step, {})[node] = math.inf if lead is None else lead
    return leads


def _compare_step(ours: StepView, theirs: StepView, leads: Mapping[int, float], noise: DraftNoise) -> ComparedStep:
    draft, made = ours.tree, theirs.tree
    if draft.tokens and made.tokens and ours.q_kind is not theirs.q_kind:
        kinds = f"drafts are recorded as {ours.q_kind.name}, made again as {theirs.q_kind.name}"
        return ComparedStep(ours.index, Likeness.WRONG, 0.0, f"position {ours.position}: {kinds}")
    worst = 0.0
    for node, distance in _distances(ours, theirs, noise):
        worst = max(worst, distance)
        if not distance <= noise.tolerance + EQUAL:
            at = f"position {ours.position}, drafted token {node + 1}"
            return ComparedStep(
                ours.index, Likeness.WRONG, worst, f"{at}: q moved by {distance:.3g} in total variation"
            )
    other = _other_number(ours, theirs) if noise.measured else None
    if other is not None:
        text = f"position {ours.position}, drafted token {other + 1}: another random number is on record"
        return ComparedStep(ours.index, Likeness.WRONG, worst, text)
    if draft == made and not leads:
        return ComparedStep(ours.index, Likeness.SAME, worst)
    lead = max(leads.values(), default=math.inf) if _explained(draft, made, leads) else math.inf
    text = f"position {ours.position}: {_shown(draft)}, made again {_shown(made)}"
    text += "" if math.isinf(lead) else f"; q would have to move by {lead:.3g} in total variation"
    return ComparedStep(ours.index, _likeness(lead, noise), worst, text)


def _other_number(ours: StepView, theirs: StepView) -> int | None:
    """The first node of the same tree whose random number is another one, if numbers are on record."""
    columns = ours.trace.node_uniform, theirs.trace.node_uniform
    if ours.tree.parents != theirs.tree.parents or not all(map(len, columns)):
        return None
    recorded, again = (column[view.nodes] for column, view in zip(columns, (ours, theirs), strict=True))
    others = np.flatnonzero(~((recorded == again) | (np.isnan(recorded) & np.isnan(again))))
    return int(others[0]) if len(others) else None


def _explained(draft: Tree, made: Tree, leads: Mapping[int, float]) -> bool:
    """True if the lead of every difference is known."""
    shared = min(len(draft), len(made))
    others = (node for node in range(shared) if draft.tokens[node] != made.tokens[node])
    ends = len(draft) == len(made) or shared in leads
    return ends and draft.parents[:shared] == made.parents[:shared] and all(node in leads for node in others)


def _likeness(lead: float, noise: DraftNoise) -> Likeness:
    if not noise.tolerance:
        return Likeness.WRONG
    if not noise.measured:
        return Likeness.UNLIKE
    return Likeness.ROUNDED if lead <= noise.tolerance else Likeness.WRONG


def _had_room(view: StepView) -> bool:
    """True if the step may emit more than the request's last token."""
    header = view.trace.header
    return view.position < len(header.prompt) + header.sampling.max_new_tokens - 1


def _shown(draft: Tree) -> str:
    return f"drafted {list(draft.tokens)}" if draft.tokens else "drafted nothing"


def _distances(ours: StepView, theirs: StepView, noise: DraftNoise) -> Iterator[tuple[int, float]]:
    """Node and total variation of its rows of q for examined nodes of the same tree and, if need be, same past."""
    alike, rounds = not noise.measured, noise.tolerance > 0
    recorded, again, draft, made = ours.trace, theirs.trace, ours.tree, theirs.tree
    whole = len(recorded.q_rows) > 0 and len(again.q_rows) > 0
    if ours.q_kind is not QKind.FULL or not (whole or (len(recorded.examined_q) and len(again.examined_q))):
        return
    for x in range(ours.examined.start, ours.examined.stop):
        node = int(recorded.examined_node[x])
        if node >= len(made.tokens) or (alike and draft.tokens[:node] != made.tokens[:node]):
            return
        if draft.parents[: node + 1] != made.parents[: node + 1]:
            return
        # every node made again is examined, in order
        at = theirs.examined.start + node
        if whole:
            yield node, _variation(recorded.q_rows[x], again.q_rows[at], cut=rounds and _truncates(recorded))
        elif draft.tokens[node] == made.tokens[node] and not (rounds and _truncates(recorded)):
            yield node, abs(float(recorded.examined_q[x]) - float(again.examined_q[at]))


def _truncates(trace: Trace) -> bool:
    params = trace.header.sampling
    return bool(params.top_k or params.min_p or params.top_p < 1)


def _variation(q: Floats, other: Floats, *, cut: bool) -> float:
    """Total variation. With `cut` a truncation may end at another token: the laws are compared where both have mass,
    and by how much a token of one alone is likelier than the least likely token of both.
    """
    both = (q > 0) & (other > 0)
    if not cut or both.all() or not both.any():
        return 0.5 * float(np.abs(q - other).sum())
    apart = 0.5 * float(np.abs(q[both] / q[both].sum() - other[both] / other[both].sum()).sum())
    alone = max(float(law[~both].max()) - float(law[both].min()) for law in (q, other))
    return max(apart, alone)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    again = evidence.companions[ArmKind.REDRAFT]
    others, noise = again.by_key(), _noise(again.effective.facts, params)
    compared = []
    for request in evidence.candidate.requests:
        other = others.get(request.key)
        if other is None:
            continue
        damage = shape_fault(request.trace)
        broken = ComparedRequest(request.request_id, (ComparedStep(0, Likeness.WRONG, 0.0, str(damage)),))
        compared.append(compare(request, other, noise) if damage is None else broken)
    return _result(compared, params)


def _noise(facts: Mapping[str, Any], params: Params) -> DraftNoise:
    """The noise of a redraft arm with these facts."""
    repeats = facts.get("copies") is True or facts.get("repeats") is True
    halves = any(is_half(facts.get(name)) for name in ("draft", "target"))
    tolerance = float(params["half_tolerance" if halves else "tolerance"])
    return DraftNoise(0.0 if repeats else tolerance, facts.get("measured") is True)


def _result(compared: list[ComparedRequest], params: Params) -> CheckResult:
    confidence, margin = float(params["confidence"]), float(params["margin"])
    steps = [step for item in compared for step in item.steps]
    counts = {kind: sum(step.likeness is kind for step in steps) for kind in Likeness}
    n, differing = len(steps), len(steps) - counts[Likeness.SAME]
    bounds = _Bounds.of(compared, differing, n, confidence)
    broken = counts[Likeness.WRONG] > 0 or (n > 0 and lower_bound(differing, n, confidence) > margin)
    findings = [
        Finding(item.request, step.step, step.message)
        for likeness in (Likeness.WRONG, Likeness.UNLIKE, Likeness.ROUNDED)
        for item in compared
        for step in item.steps
        if broken and step.likeness is likeness
    ]
    worst = max((step.distance for step in steps), default=0.0)
    certified = n > 0 and bounds.steps <= margin
    return CheckResult(
        verdict=Verdict.FAULT if broken else Verdict.CERTIFIED if certified else Verdict.INCONCLUSIVE,
        summary=_summary(bounds, findings, worst, certified=certified),
        n=n,
        statistic=float(differing),
        effect=differing / n if n else None,
        bound=bounds.steps if n else None,
        margin=margin,
        findings=tuple(findings[: int(params["max_findings"])]),
        details={
            "steps": n,
            "requests": len(compared),
            "requests_differing": bounds.requests_differing,
            "bound_of_steps": bounds.steps,
            "bound_of_requests": bounds.requests,
            "largest_distance": worst,
            **{kind.value: counts[kind] for kind in Likeness if kind is not Likeness.SAME},
        },
    )


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Steps and requests, those that differ, and the upper bounds on their shares; 1 without any."""

    n_steps: int
    steps_differing: int
    steps: float
    n_requests: int
    requests_differing: int
    requests: float

    @classmethod
    def of(cls, compared: list[ComparedRequest], differing: int, n: int, confidence: float) -> _Bounds:
        requests, parted = len(compared), sum(item.differs for item in compared)
        of_requests = upper_bound(parted, requests, confidence) if requests else 1.0
        return cls(n, differing, upper_bound(differing, n, confidence) if n else 1.0, requests, parted, of_requests)


def _summary(bounds: _Bounds, findings: list[Finding], worst: float, *, certified: bool) -> str:
    if findings:
        first = findings[0]
        text = f"the drafts of {bounds.steps_differing} of {bounds.n_steps} steps"
        text = f"{text}, in {bounds.requests_differing} of {bounds.n_requests} requests"
        return f"{text}, are not the proposer's own for this text; first in {first.request}: {first.message}"
    if not bounds.n_steps:
        return "no step of the requests that were drafted again had room for a draft"
    differ = f"{bounds.steps_differing} differ by rounding" if bounds.steps_differing else "none differs"
    text = f"{bounds.n_steps} steps of {bounds.n_requests} requests drafted again, {differ}"
    text = f"{text}; at most a share of {bounds.steps:.2g} of steps and {bounds.requests:.2g} of requests does"
    text = f"{text}, q moves by at most {worst:.2g}"
    return text if certified else f"{text}; not within the margin: more steps are needed"


CHECK = Check(
    name="draft_anchor",
    claim="drafts",
    defaults={"margin": 0.1, "tolerance": 0.001, "half_tolerance": 0.05, "confidence": 0.99, "max_findings": 20},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="every draft is the one that the proposer makes for this text alone",
    effect="share of steps whose drafts differ",
    plan=none_of("steps", lambda design: design.gamma),
    companions=(ArmKind.REDRAFT,),
    # a sample of the requests need not meet the rarer situations of the other groups
    covers=frozenset({Group.BATCH, Group.CONTEXTS}),
    examines=redrafted,
)
