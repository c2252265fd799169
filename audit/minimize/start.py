"""Prepares a minimisation: a fault of a stored run, one of its requests, and the arm as a separate suite.

Reads the store and the suite; runs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from audit.checks import load
from audit.errors import UserError
from audit.evidence.divergence.triage import MIN_NOISE_POSITIONS
from audit.evidence.records import ArmRecord, is_directed, is_later_turn, request_order
from audit.evidence.verdicts import Verdict
from audit.minimize.steps import keys_of, with_keys
from audit.store import RequestKey, Store, StoredCheck, StoredRun
from audit.store.base.values import requests_named
from audit.suite.allowances import NOTHING, Allowances
from audit.suite.spec import CandidateSpec, Case, Suite

NAME = "reproducer"


@dataclass(frozen=True, slots=True)
class MinimizeStart:
    """The input of a minimisation."""

    run: StoredRun
    fault: StoredCheck
    subject: RequestKey
    named: bool
    """True if a finding of the fault names the subject."""
    prompt: int
    """Tokens of the subject's prompt."""
    suite: Suite
    """The fault's arm and check alone, with all of the arm's requests in the run."""
    allowed: Allowances = NOTHING
    """Allowed access outside the suite."""

    @property
    def by_chance(self) -> bool:
        """True if the verdict rests on a statistical test rather than a contradiction."""
        return bool(self.fault.p_value)

    @property
    def request(self) -> str:
        """The subject in the form that findings use."""
        return self.subject.name


def begin(store: Store, run: StoredRun, suite: Suite, request: str | None, check: str | None) -> MinimizeStart:
    """Choose fault and request of a run.

    `request` is `case#sample` or `arm/case#sample`; None takes the first that the fault names. Without the name of a
    check, the fault is the first that names the request, or else the first; contradictions come before statistics.

    Raises:
        UserError: the suite has changed, or the fault or request does not exist.
    """
    if suite.sha256 != run.suite_sha256:
        raise UserError(f"{suite.path}: has changed since run {run.ulid}; restore it, or run it again")
    faults = _faults(store, run, suite, check)
    stored = {arm.name: _stored(store, run, arm) for arm in suite.arms if run.arm(arm.name)}
    every = [key for item in stored.values() for key in item]
    asked = [] if request is None else requests_named(run.ulid, every, request)
    fault = _fault(faults, asked)
    if fault is None:
        raise UserError(f"run {run.ulid}: arm {asked[0].arm} has no such fault; there are: {_listed(faults)}")
    keys = stored[fault.arm]
    subject = next((key for key in asked if key.arm == fault.arm), None) or _named(fault, keys)
    named, prompt = subject.name in {finding.request for finding in fault.findings}, keys[subject]
    if not _added(subject):
        own = tuple(key for key in keys if not _added(key))
        return MinimizeStart(run, fault, subject, named, prompt, _alone(suite, fault, own))
    alone = _only(_alone(suite, fault, ()), store.load_arm(run.ulid, fault.arm, [subject]))
    return MinimizeStart(run, fault, keys_of(alone)[0], named, prompt, alone)


def _added(key: RequestKey) -> bool:
    """True if no case of the suite states the request."""
    return is_directed(key.case_id) or is_later_turn(key.case_id)


def _only(suite: Suite, record: ArmRecord) -> Suite:
    """The suite with one such request, as a case of a suite can state it: its parameters are the arm's."""
    (request,) = record.requests
    header, (arm,) = request.trace.header, suite.arms
    case = Case(f"{NAME}/0", NAME, NAME, tokens=header.prompt, samples=(0,))
    return replace(suite, cases=(case,), arms=(replace(arm, sampling=header.sampling),))


def _faults(store: Store, run: StoredRun, suite: Suite, check: str | None) -> list[StoredCheck]:
    arms = {arm.name for arm in suite.arms}
    every = [other for other in store.checks(run.ulid) if other.verdict is Verdict.FAULT and other.arm in arms]
    if not every:
        raise UserError(f"run {run.ulid} has no fault: there is nothing to minimize")
    if check is None:
        # a contradiction that names a request shrinks in few runs, a statistic needs its tokens in each
        return sorted(every, key=lambda fault: (bool(fault.p_value), not fault.findings))
    load(check)
    faults = [item for item in every if item.check == check]
    if not faults:
        raise UserError(f"run {run.ulid}: {check} found no fault; there are: {_listed(every)}")
    return faults


def _listed(faults: Sequence[StoredCheck]) -> str:
    return ", ".join(f"{fault.check} of {fault.arm}" for fault in faults)


def _stored(store: Store, run: StoredRun, arm: CandidateSpec) -> dict[RequestKey, int]:
    """The arm's requests in the run, with the lengths of their prompts."""
    record = store.load_arm(run.ulid, arm.name)
    every = (*record.requests, *record.failed, *record.refused)
    ordered = sorted(every, key=lambda item: request_order(item.case_id, item.sample))
    return {RequestKey(arm.name, item.case_id, item.sample): len(item.trace.header.prompt) for item in ordered}


def _fault(faults: Sequence[StoredCheck], asked: Sequence[RequestKey]) -> StoredCheck | None:
    """The first fault that names a requested request, else the first in its arm."""
    names, arms = {key.name for key in asked}, {key.arm for key in asked}
    naming = (fault for fault in faults if names & {finding.request for finding in fault.findings})
    within = (fault for fault in faults if fault.arm in arms or not asked)
    return next(naming, None) or next(within, None)


def _named(fault: StoredCheck, keys: Mapping[RequestKey, int]) -> RequestKey:
    """The first request that the fault names, else the arm's first."""
    by_name = {key.name: key for key in keys}
    named = {finding.request for finding in fault.findings}
    return next((key for name, key in by_name.items() if name in named), next(iter(by_name.values())))


def _alone(suite: Suite, fault: StoredCheck, keys: Sequence[RequestKey]) -> Suite:
    """The suite of the fault's arm and check, with these requests."""
    arm = next(arm for arm in suite.arms if arm.name == fault.arm)
    samples = {key.case_id: tuple(other.sample for other in keys if other.case_id == key.case_id) for key in keys}
    models = {"target", arm.proposer.model, *arm.proposer.others}
    whole = replace(
        suite,
        name=NAME,
        description=f"A small suite that reproduces a fault found by {fault.check} in an arm of {suite.name}.",
        samples=1,
        models={name: spec for name, spec in suite.models.items() if name in models},
        cases=tuple(replace(case, samples=samples.get(case.id, ())) for case in suite.cases),
        arms=(replace(arm, checks={fault.check: _params(arm, fault)}, coverage=replace(arm.coverage, directed=False)),),
    )
    return with_keys(whole, keys)


def _params(arm: CandidateSpec, fault: StoredCheck) -> Mapping[str, Any]:
    """The suite's parameters with the noise from the run: a few requests cannot measure it again."""
    params, details = arm.checks[fault.check], fault.details
    known = details.get("noise_positions", 0) >= MIN_NOISE_POSITIONS
    if "noise_bound" not in load(fault.check).defaults or "noise_bound" in params or not known:
        return params
    return {**params, "noise_bound": float(details["noise_bound"])}
