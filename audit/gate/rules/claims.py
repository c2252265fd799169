"""Rules on claims: the verdicts that requirements rest on, the parameters behind them, and what checks examined."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from audit.evidence.identity import answered_by_service
from audit.evidence.verdicts import Verdict
from audit.gate.decision import Decision, Reason, blocked, remark, undecided
from audit.gate.facts import RunFacts
from audit.gate.parameters import violations
from audit.gate.policy import ArmFilter, Policy, Requirement, Scope
from audit.gate.rules.run import made_of
from audit.gate.rules.workload import short_of
from audit.report.tables.verdicts import waived_lines
from audit.store import StoredArm, StoredCheck

IDENTITY: Final = "identity"
Results = Mapping[tuple[str, str], StoredCheck]


def claim_reasons(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    """Why the arms do not show what the policy requires of them."""
    yield from _other_faults(facts, policy)
    yield from _uncovered(facts, policy)
    yield from _accounts(facts)
    yield from _coverage(facts, policy)
    yield from _directed(facts, policy)
    yield from _identity(facts, policy)
    yield from _parameters(facts, policy)
    for requirement in policy.require:
        yield from _requirement(facts, policy, requirement)
    yield from _waived(facts)


def selected(facts: RunFacts, requirement: Requirement) -> list[StoredArm]:
    """The candidate arms that a requirement is for."""
    return [arm for arm in facts.candidates if _meets(arm, requirement.arms)]


def _meets(arm: StoredArm, wanted: ArmFilter) -> bool:
    """True if the arm meets every condition. A condition on a fact that the record lacks counts as met."""
    verifier = arm.spec.get("verifier")
    temperature = (arm.spec.get("sampling") or {}).get("temperature")
    return (
        (not wanted.names or arm.name in wanted.names)
        and (not wanted.verifiers or verifier is None or verifier in wanted.verifiers)
        and (wanted.greedy is None or temperature is None or wanted.greedy == (temperature == 0))
    )


def _relied_on(facts: RunFacts, policy: Policy) -> set[tuple[str, str]]:
    """Arm and check of every result that a requirement reads."""
    return {
        (arm.name, check)
        for requirement in policy.require
        for arm in selected(facts, requirement)
        for check in requirement.checks
    }


def _other_faults(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    candidates, required = {arm.name for arm in facts.candidates}, _relied_on(facts, policy)
    for check in facts.checks:
        if check.verdict is Verdict.FAULT and check.arm in candidates and (check.arm, check.check) not in required:
            text = f"arm {check.arm}: {check.check} is fault: {check.summary}"
            yield blocked(check.claim, text, check.arm, check.check)


def _uncovered(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    """A reason for each arm that no requirement selects: it would pass without evidence."""
    covered = {arm.name for requirement in policy.require for arm in selected(facts, requirement)}
    for arm in facts.candidates:
        if arm.name not in covered:
            yield undecided("require", f"no requirement of the policy is for arm {arm.name}", arm.name)


def _accounts(facts: RunFacts) -> Iterator[Reason]:
    """A reason for each arm that holds a quantity which nobody looked at twice, and a remark for each waived one."""
    candidates = {arm.name for arm in facts.candidates}
    for check in facts.checks:
        if check.claim == "accounts" and check.arm in candidates:
            if check.verdict is Verdict.INCONCLUSIVE:
                yield undecided("accounts", f"arm {check.arm}: {check.summary}", check.arm, check.check)
            yield from (remark("accounts", line) for line in waived_lines([check]))


def _coverage(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    for arm in facts.candidates if policy.coverage else ():
        counted = facts.coverage.get(arm.name)
        if counted is None:
            yield undecided("coverage", f"arm {arm.name}: the run does not record what its checks examined", arm.name)
            continue
        for situation, least in policy.coverage.items():
            count = counted.get(situation, 0)
            if count < least:
                text = f"arm {arm.name}: {situation} was examined {count} times, {least} are required"
                yield undecided("coverage", text, arm.name, about=situation)


def _waived(facts: RunFacts) -> Iterator[Reason]:
    """A remark on each arm with situations that nobody examined because its suite waives them."""
    document = facts.run.suite_document
    for arm in facts.candidates:
        own: dict[str, Any] = next((entry for entry in document.get("arms", ()) if made_of(arm, entry["name"])), {})
        rule = {**document.get("coverage", {}), **own.get("coverage", {})}
        counted = facts.coverage.get(arm.name, {})
        names = counted if rule.get("least") == 0 else rule.get("waive", ())
        unseen = ", ".join(sorted(name for name in names if not counted.get(name)))
        if unseen:
            yield remark("coverage", f"arm {arm.name}: the suite lets these situations go unexamined: {unseen}")


def _directed(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    for arm in facts.candidates if policy.own_coverage else ():
        if arm.counts.directed:
            text = f"arm {arm.name}: {arm.counts.directed} directed requests stand in for the suite's own"
            yield undecided("own_coverage", text, arm.name)


def _identity(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    """A reason for each arm whose answers are not shown to be one service's."""
    results = {check.arm: check for check in facts.checks if check.check == IDENTITY}
    for arm in facts.candidates if policy.one_identity else ():
        check = results.get(arm.name)
        if answered_by_service(arm.effective) and (check is None or check.verdict is not Verdict.CERTIFIED):
            text = f"{IDENTITY} is missing" if check is None else f"{IDENTITY} is {check.verdict}: {check.summary}"
            yield undecided("one_identity", f"arm {arm.name}: {text}", arm.name, IDENTITY)


def _parameters(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    """A reason for each parameter of a required check that the suite made looser than the policy accepts."""
    for arm, check in sorted(_relied_on(facts, policy)):
        given = facts.parameters.get(arm, {}).get(check)
        if given is None:
            continue
        for name, problem in violations(given.used, given.defaults, policy.parts.parameters.get(check, {})):
            text = f"arm {arm}: {check} judged with other limits: {problem}"
            yield undecided("parameters", text, arm, check, name)


def _requirement(facts: RunFacts, policy: Policy, requirement: Requirement) -> list[Reason]:
    results = {(check.arm, check.check): check for check in facts.checks}
    absent = sorted(set(requirement.arms.names) - {arm.name for arm in facts.candidates})
    reasons = [undecided(requirement.claim, f"the run has no candidate arm {name}", name) for name in absent]
    by_arm = {
        arm.name: [*_arm(arm.name, requirement, policy, results), *_workload(facts, arm, requirement)]
        for arm in selected(facts, requirement)
    }
    if requirement.scope is Scope.EACH_ARM:
        return [*reasons, *(reason for own in by_arm.values() for reason in own)]
    contradictions = [reason for own in by_arm.values() for reason in own if reason.answer is Decision.BLOCK]
    if contradictions or any(not own for own in by_arm.values()):
        return [*reasons, *contradictions]
    checks = " or ".join(requirement.checks)
    return [*reasons, undecided(requirement.claim, f"no arm of the run has {checks} certified", about=checks)]


def _workload(facts: RunFacts, arm: StoredArm, requirement: Requirement) -> Iterator[Reason]:
    for lack in short_of(facts, arm, requirement.workload):
        yield undecided(requirement.claim, f"arm {arm.name}: {lack.text}", arm.name, about=lack.count)


def _arm(arm: str, requirement: Requirement, policy: Policy, results: Results) -> list[Reason]:
    """Why one arm does not show a claim; empty if it shows it."""
    known = [results[arm, check] for check in requirement.checks if (arm, check) in results]
    bad = [check for check in known if check.verdict in (Verdict.FAULT, Verdict.INCONCLUSIVE)]
    if bad:
        return [
            blocked(
                requirement.claim, f"arm {arm}: {check.check} is {check.verdict}: {check.summary}", arm, check.check
            )
            for check in bad
        ]
    certified = [check for check in known if check.verdict is Verdict.CERTIFIED]
    if any(check.level >= policy.min_level for check in certified):
        return []
    return list(_missing(arm, requirement, policy, known))


def _missing(arm: str, requirement: Requirement, policy: Policy, known: Sequence[StoredCheck]) -> Iterator[Reason]:
    """One reason per check that could have shown the claim."""
    by_name = {check.check: check for check in known}
    for name in requirement.checks:
        check = by_name.get(name)
        if check is None:
            text = f"{name} is missing"
        elif check.verdict is Verdict.CERTIFIED:
            text = f"{name} rests on evidence {check.level.name}, {policy.min_level.name} is required"
        else:
            text = f"{name} is {check.verdict}: {check.summary}"
        yield undecided(requirement.claim, f"arm {arm}: {text}", arm, name)
