"""The decision on a run under a policy: a pure function of both and the time.

Every unmet requirement becomes a reason. A requirement that the evidence
contradicts blocks; one that the evidence does not show cannot be decided. A block
outweighs the rest:

| what is found                                              | outcome       |
|------------------------------------------------------------|---------------|
| a required check is fault or inconclusive                  | block         |
| any check of a candidate arm is fault                      | block         |
| an arm is broken on purpose                                | block         |
| an arm's rule is lossy and the policy requires lossless    | block         |
| a subject's digest differs from the run's                  | block         |
| a required check is missing or not_run                     | cannot decide |
| a required verdict rests on a lower evidence level         | cannot decide |
| the run is unfinished, too old, too short, of another suite| cannot decide |
| the run's record does not agree with its root              | cannot decide |
| a subject that no candidate arm used, or nobody named      | cannot decide |
| an arm that no requirement is for                          | cannot decide |
| an arm that drafted or accepted nothing                    | cannot decide |
| a situation was examined too seldom, or nobody counted     | cannot decide |

A role that nobody named is waived, and the waiver recorded, if the caller says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.gate.policy import ArmFilter, Policy, Requirement, Scope
from audit.gate.subjects import Subject
from audit.store.values import ArtifactRef, RunStatus, StoredArm, StoredCheck, StoredRun

CLOCK_SKEW: Final = timedelta(minutes=5)


class Decision(StrEnum):
    """A gate's decision; only `allow` lets a deployment pass."""

    ALLOW = "allow"
    BLOCK = "block"
    CANNOT_DECIDE = "cannot_decide"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return {Decision.ALLOW: 0, Decision.BLOCK: 1, Decision.CANNOT_DECIDE: 3}[self]


@dataclass(frozen=True, slots=True)
class Reason:
    """One unmet requirement. `answer` is the decision that follows from it alone."""

    answer: Decision
    requirement: str
    text: str

    def __str__(self) -> str:
        return f"{self.answer}: {self.requirement}: {self.text}"


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """A decision with all its reasons; those of an `allow` are waivers, whose own answer is `allow`."""

    answer: Decision
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The store's facts about a run. `broken` names the places where its record is damaged.

    `coverage` says by arm and situation how often each of the arm's certifying checks examined it, at least; absent
    situations count as 0. The record of an absent arm states no coverage.
    """

    run: StoredRun
    checks: Sequence[StoredCheck]
    broken: tuple[str, ...] = ()
    coverage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def candidates(self) -> tuple[StoredArm, ...]:
        """The arms under audit."""
        return tuple(arm for arm in self.run.arms if arm.kind is ArmKind.CANDIDATE)


def decide(
    facts: RunFacts, policy: Policy, subjects: Sequence[Subject], now: datetime, *, no_subject: bool = False
) -> GateOutcome:
    """Judge a run by a policy.

    Args:
        facts: the run, its last check results and the state of its record.
        policy: the requirements.
        subjects: digests that the deployment names, in addition to the policy's own.
        now: the moment of the decision, with a time zone.
        no_subject: waive the roles that the policy wants named and `subjects` does not name.
    """
    wanted = [*(Subject(role, digest, "policy") for role, digest in policy.digests.items()), *subjects]
    reasons = (
        *_run_reasons(facts, policy, now),
        *_unnamed(facts, policy, subjects, no_subject=no_subject),
        *(reason for subject in wanted for reason in _subject_reasons(facts, subject)),
        *_fault_reasons(facts, policy),
        *_lossy_reasons(facts, policy),
        *_uncovered_reasons(facts, policy),
        *_speculation_reasons(facts),
        *_coverage_reasons(facts, policy),
        *(reason for requirement in policy.require for reason in _requirement_reasons(facts, policy, requirement)),
    )
    answers = {reason.answer for reason in reasons}
    worst = next((answer for answer in (Decision.BLOCK, Decision.CANNOT_DECIDE) if answer in answers), Decision.ALLOW)
    return GateOutcome(worst, reasons)


def _undecided(requirement: str, text: str) -> Reason:
    return Reason(Decision.CANNOT_DECIDE, requirement, text)


def _run_reasons(facts: RunFacts, policy: Policy, now: datetime) -> Iterator[Reason]:
    run = facts.run
    if facts.broken:
        more = f" and {len(facts.broken) - 1} more places" if len(facts.broken) > 1 else ""
        yield _undecided("record", f"not what it was when the run finished: {facts.broken[0]}{more}")
    if run.status is not RunStatus.FINISHED or run.finished_at is None:
        yield _undecided("run", f"the run is {run.status}, not finished")
    else:
        yield from _age_reasons(now - run.finished_at, policy.max_age)
    tokens = sum(arm.counts.output for arm in facts.candidates)
    if tokens < policy.min_tokens:
        yield _undecided("min_tokens", f"the candidate arms emitted {tokens} tokens, {policy.min_tokens} are required")
    if policy.suites and run.suite_sha256 not in policy.suites:
        yield _undecided(
            "suites", f"suite {run.suite_name} sha256:{run.suite_sha256} is not one that the policy accepts"
        )


def _age_reasons(age: timedelta, limit: timedelta) -> Iterator[Reason]:
    if age > limit:
        yield _undecided("max_age", f"the run finished {_spoken(age)} ago, at most {_spoken(limit)} are allowed")
    if age < -CLOCK_SKEW:
        yield _undecided("max_age", f"the run finished {_spoken(-age)} in the future; check the clocks")


def _spoken(span: timedelta) -> str:
    days = span / timedelta(days=1)
    return f"{days:.1f} days" if days >= 1 else f"{span / timedelta(hours=1):.1f} hours"


def _unnamed(facts: RunFacts, policy: Policy, subjects: Sequence[Subject], *, no_subject: bool) -> Iterator[Reason]:
    given = {subject.role for subject in subjects}
    for role in dict.fromkeys((*policy.named, *policy.named_if_used)):
        used = _used_as(facts, role)
        required = role in policy.named or used
        if not required or role in given or (used and all(artifact.role in given for artifact in used)):
            continue
        if no_subject:
            yield Reason(Decision.ALLOW, f"subject {role}", "not named; --no-subject waived it")
        else:
            text = f"the policy wants it named; add --subject {role}=FOLDER, or say --no-subject"
            yield _undecided(f"subject {role}", text)


def _subject_reasons(facts: RunFacts, subject: Subject) -> Iterator[Reason]:
    """Compare the subject's digest with every artifact of its role; artifacts with different digests are ambiguous."""
    requirement = f"subject {subject.role}"
    used = _used_as(facts, subject.role)
    matching = [artifact for artifact in used if artifact.sha256 == subject.sha256]
    if not used:
        known = ", ".join(sorted({name for artifact in _used(facts) for name in (artifact.role, artifact.kind)}))
        yield _undecided(requirement, f"no candidate arm used such a thing; they used: {known}")
    elif not matching:
        text = f"{subject.origin} is sha256:{subject.sha256}, the run used sha256:{used[0].sha256}"
        yield Reason(Decision.BLOCK, requirement, text)
    elif len(matching) < len(used):
        names = ", ".join(sorted({artifact.role for artifact in used}))
        yield _undecided(requirement, f"the run used several with different digests; name one of: {names}")


def _used_as(facts: RunFacts, role: str) -> list[ArtifactRef]:
    """The used artifact with that role; if there is none, all used artifacts of that kind."""
    used = _used(facts)
    return [artifact for artifact in used if artifact.role == role] or [each for each in used if each.kind == role]


def _used(facts: RunFacts) -> list[ArtifactRef]:
    """The run's artifacts, without the draft models that the suite declares and no candidate arm used."""
    specs = [arm.spec for arm in facts.candidates]
    # an older record or another tool's may not name the models of an arm: then every model counts as used
    if any("draft" not in spec for spec in specs):
        return list(facts.run.artifacts)
    drafts = {name for spec in specs for name in (spec["draft"], *spec.get("other_drafts", ()))}
    return [artifact for artifact in facts.run.artifacts if artifact.kind != "draft" or artifact.role in drafts]


def _fault_reasons(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    candidates = {arm.name for arm in facts.candidates}
    for arm in facts.candidates:
        if arm.fault and not policy.allow_known_bad:
            yield Reason(Decision.BLOCK, "known_bad", f"arm {arm.name} is broken on purpose: {arm.fault}")
    covered = {(arm, check) for arm, requirement in _covered(facts, policy) for check in requirement.checks}
    for check in facts.checks:
        if check.verdict is Verdict.FAULT and check.arm in candidates and (check.arm, check.check) not in covered:
            yield Reason(Decision.BLOCK, check.claim, f"arm {check.arm}: {check.check} is fault: {check.summary}")


def _lossy_reasons(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    for arm in facts.candidates:
        if policy.require_lossless and not arm.lossless:
            rule = arm.effective.protocol or arm.spec.get("verifier") or "unknown"
            yield Reason(Decision.BLOCK, "lossless", f"arm {arm.name}: its rule {rule} declares itself lossy")


def _covered(facts: RunFacts, policy: Policy) -> Iterator[tuple[str, Requirement]]:
    for requirement in policy.require:
        yield from ((arm.name, requirement) for arm in facts.candidates if _selected(arm, requirement.arms))


def _uncovered_reasons(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    """A reason for each arm that no requirement selects: it would pass without evidence."""
    covered = {arm for arm, _ in _covered(facts, policy)}
    for arm in facts.candidates:
        if arm.name not in covered:
            yield _undecided("require", f"no requirement of the policy is for arm {arm.name}")


def _speculation_reasons(facts: RunFacts) -> Iterator[Reason]:
    """A reason for each arm whose speculation left no trace in its output: its checks looked at plain decoding."""
    for arm in facts.candidates:
        if not arm.counts.drafted:
            yield _undecided("speculation", f"arm {arm.name}: its record shows no drafted token")
        elif not arm.counts.accepted:
            text = f"arm {arm.name}: none of its {arm.counts.drafted} drafted tokens was accepted"
            yield _undecided("speculation", f"{text}; use a draft that the target accepts")


def _coverage_reasons(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    for arm in facts.candidates if policy.coverage else ():
        counted = facts.coverage.get(arm.name)
        if counted is None:
            yield _undecided("coverage", f"arm {arm.name}: the run does not record what its checks examined")
            continue
        for situation, least in policy.coverage.items():
            count = counted.get(situation, 0)
            if count < least:
                text = f"arm {arm.name}: {situation} was examined {count} times, {least} are required"
                yield _undecided("coverage", text)


def _requirement_reasons(facts: RunFacts, policy: Policy, requirement: Requirement) -> list[Reason]:
    arms = [arm for arm in facts.candidates if _selected(arm, requirement.arms)]
    results = {(check.arm, check.check): check for check in facts.checks}
    absent = sorted(set(requirement.arms.names) - {arm.name for arm in facts.candidates})
    reasons = [_undecided(requirement.claim, f"the run has no candidate arm {name}") for name in absent]
    found = {arm.name: _arm_reasons(arm.name, requirement, policy, results) for arm in arms}
    if requirement.scope is Scope.EACH_ARM:
        return [*reasons, *(reason for each in found.values() for reason in each)]
    contradictions = [reason for each in found.values() for reason in each if reason.answer is Decision.BLOCK]
    if contradictions or any(not each for each in found.values()):
        return [*reasons, *contradictions]
    checks = " or ".join(requirement.checks)
    return [*reasons, _undecided(requirement.claim, f"no arm of the run has {checks} certified")]


def _selected(arm: StoredArm, wanted: ArmFilter) -> bool:
    """True if the arm meets every condition. A condition on a fact that the record lacks counts as met."""
    verifier = arm.spec.get("verifier")
    temperature = (arm.spec.get("sampling") or {}).get("temperature")
    return (
        (not wanted.names or arm.name in wanted.names)
        and (not wanted.verifiers or verifier is None or verifier in wanted.verifiers)
        and (wanted.greedy is None or temperature is None or wanted.greedy == (temperature == 0))
    )


def _arm_reasons(
    arm: str, requirement: Requirement, policy: Policy, results: Mapping[tuple[str, str], StoredCheck]
) -> list[Reason]:
    """Why one arm does not show a claim; empty if it shows it."""
    found = [results[arm, check] for check in requirement.checks if (arm, check) in results]
    bad = [check for check in found if check.verdict in (Verdict.FAULT, Verdict.INCONCLUSIVE)]
    if bad:
        return [
            Reason(Decision.BLOCK, requirement.claim, f"arm {arm}: {check.check} is {check.verdict}: {check.summary}")
            for check in bad
        ]
    certified = [check for check in found if check.verdict is Verdict.CERTIFIED]
    if any(check.level >= policy.min_level for check in certified):
        return []
    return [_undecided(requirement.claim, f"arm {arm}: {text}") for text in _missing(requirement, policy, found)]


def _missing(requirement: Requirement, policy: Policy, found: Sequence[StoredCheck]) -> Iterator[str]:
    """One text per check that could have shown the claim."""
    by_name = {check.check: check for check in found}
    for name in requirement.checks:
        check = by_name.get(name)
        if check is None:
            yield f"{name} is missing"
        elif check.verdict is Verdict.CERTIFIED:
            yield f"{name} rests on evidence {check.level.name}, {policy.min_level.name} is required"
        else:
            yield f"{name} is {check.verdict}: {check.summary}"
