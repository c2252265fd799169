"""Rules on the scope of a run: it has the batches, drafts, numerics and device of the deployment."""

from __future__ import annotations

from collections.abc import Iterator

from audit.evidence.coverage.scope import ArmScope, scope_of_details
from audit.evidence.verdicts import Verdict
from audit.gate.decision import Reason, undecided
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.policy_parts import DeployedScope
from audit.gate.rules.workload import Shortfall

DEPLOYED = "deployed"


def deployed_reasons(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    """Why the candidate arms did not run as the deployment does."""
    for arm in facts.candidates:
        for lack in beyond(_scope(facts, arm.name), policy.parts.deployed):
            yield undecided(DEPLOYED, f"arm {arm.name}: {lack.text}", arm.name, about=lack.count)


def _scope(facts: RunFacts, arm: str) -> ArmScope:
    """The scope of an arm's certified verdicts, which is the same for all."""
    certified = (check for check in facts.checks if check.arm == arm and check.verdict is Verdict.CERTIFIED)
    known = (scope for check in certified if (scope := scope_of_details(check.details)) is not None)
    return next(known, ArmScope())


def beyond(seen: ArmScope, deployed: DeployedScope) -> Iterator[Shortfall]:
    """The parts of a deployment that an arm's record does not show."""
    size, drafted = deployed.batch_size, deployed.drafted
    if size is not None:
        shown = _range(seen.smallest_batch, seen.largest_batch)
        inside = seen.smallest_batch is not None and seen.smallest_batch <= size <= (seen.largest_batch or 0)
        yield from () if inside else (Shortfall("batch_size", f"audited at batch {shown}, deployed at {size}"),)
    if drafted is not None and (seen.longest_draft is None or seen.longest_draft < drafted):
        yield Shortfall("drafted", f"audited with drafts of {_word(seen.longest_draft)}, deployed with {drafted}")
    named = (("shape", seen.shape), ("numerics", seen.numerics), ("device", _kind(seen.device)))
    for name, audited in named:
        wanted = getattr(deployed, name)
        if wanted is not None and (_kind(wanted) if name == "device" else wanted) != audited:
            yield Shortfall(name, f"audited with {name} {_word(audited)}, deployed with {wanted}")


def _range(low: int | None, high: int | None) -> str:
    return _word(low) if low == high else f"{low} to {high}"


def _word(value: object) -> str:
    return "unknown" if value is None else str(value)


def _kind(device: str | None) -> str | None:
    """A device without its number: `cuda:0` is `cuda`."""
    return None if device is None else device.partition(":")[0].lower()
