"""Rules on what a run exercised: speculation, the least workload of arms, what the deployment serves, floors.

A run has the batches, drafts, numerics and device of the deployment.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final

from audit.evidence.coverage.scope import ArmScope, scope_of_details
from audit.evidence.verdicts import Verdict
from audit.gate.decision import Reason, blocked, remark, undecided
from audit.gate.facts import ArmWorkload, RunFacts
from audit.gate.policy import Policy
from audit.gate.policy_parts import DeployedScope, LeastWorkload, SampledRange
from audit.store import StoredArm

SERVED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "greedy": ("greedy_equality", "bitwise"),
    "structured": ("schema_conformance", "constraint_replay"),
    "tools": ("tool_call_equality",),
    "filters": ("filter_equality", "no_leak"),
}
"""Checks one of which must be certified in an arm that shows what a deployment serves."""


def workload_reasons(facts: RunFacts, policy: Policy, serves: tuple[str, ...] | None) -> Iterator[Reason]:
    """Why the run did not exercise what the policy asks for; `serves` narrows the policy's own list."""
    for arm in facts.candidates:
        yield from _speculation(arm)
        for lack in short_of(facts, arm, policy.parts.workload):
            yield undecided("workload", f"arm {arm.name}: {lack.text}", arm.name, about=lack.count)
        yield from _floors(arm, policy)
    yield from _narrowed(policy.parts.serves, serves or ())
    for served in policy.parts.serves if serves is None else serves:
        yield from _served(facts, served, policy.parts.sampled)


def _narrowed(listed: tuple[str, ...], serves: tuple[str, ...]) -> Iterator[Reason]:
    """Why words of a deployment are none of the policy's list, and a remark on what they leave out of it."""
    if listed and serves:
        for word in sorted(set(serves) - set(listed)):
            text = f"the policy lets a deployment serve {', '.join(listed)}; use one that lists it"
            yield undecided(f"serves {word}", text)
        if set(serves) < set(listed):
            yield remark("serves", f"{', '.join(serves)} alone, of the policy's {', '.join(listed)}")


def _speculation(arm: StoredArm) -> Iterator[Reason]:
    """A reason if the arm's speculation left no trace in its output: its checks looked at plain decoding."""
    if not arm.counts.drafted:
        yield undecided("speculation", f"arm {arm.name}: its record shows no drafted token", arm.name)
    elif not arm.counts.accepted:
        text = f"arm {arm.name}: none of its {arm.counts.drafted} drafted tokens was accepted"
        yield undecided("speculation", f"{text}; use a draft that the target accepts", arm.name)


COUNTS: Final[Mapping[str, Callable[[ArmWorkload], int]]] = {
    "tokens": lambda done: done.tokens,
    "requests": lambda done: done.requests,
    "prompts": lambda done: done.prompts,
    "domains": lambda done: len(done.domains),
    "context": lambda done: done.longest,
}
WORDS: Final = {
    "tokens": "emitted tokens",
    "requests": "answered requests",
    "prompts": "different prompts",
    "domains": "domains",
    "verified_drafts": "drafted tokens verified",
    "batch_size": "requests decoded at once",
    "context": "tokens of the longest prompt with its answer",
}


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A count of a workload that is too small, in words."""

    count: str
    text: str


def short_of(facts: RunFacts, arm: StoredArm, wanted: LeastWorkload) -> Iterator[Shortfall]:
    """Gaps in an arm's workload."""
    for field in fields(wanted):
        least = getattr(wanted, field.name)
        if least is None:
            continue
        count = _count(facts, arm, field.name)
        if count is None:
            yield Shortfall(field.name, f"{WORDS[field.name]} are unknown, {least} are required")
        elif count < least:
            yield Shortfall(field.name, f"{count} {WORDS[field.name]}, {least} are required")


def _count(facts: RunFacts, arm: StoredArm, name: str) -> int | None:
    if name == "verified_drafts":
        return arm.counts.drafted
    if name == "batch_size":
        rows = arm.effective.rows or arm.spec.get("rows")
        return rows if isinstance(rows, int) else None
    done = facts.workloads.get(arm.name)
    return None if done is None else COUNTS[name](done)


def _floors(arm: StoredArm, policy: Policy) -> Iterator[Reason]:
    counts, floors = arm.counts, policy.parts.floors
    rates = (
        ("acceptance", counts.accepted, counts.drafted, floors.acceptance),
        ("tokens_per_forward", counts.output, counts.steps, floors.tokens_per_forward),
    )
    for name, part, whole, least in rates:
        if least is None:
            continue
        if part is None or not whole:
            text = f"arm {arm.name}: {name} is unknown, {least:g} is required"
            yield undecided("floors", text, arm.name, about=name)
        elif part / whole < least:
            text = f"arm {arm.name}: {name} is {part / whole:.3g}, {least:g} is required"
            yield blocked("floors", text, arm.name, about=name)


def _served(facts: RunFacts, served: str, sampled: SampledRange) -> Iterator[Reason]:
    requirement = f"serves {served}"
    if served == "sampled":
        yield from (undecided(requirement, lack.text, about=lack.count) for lack in _sampling(facts, sampled))
        return
    certified = {(check.arm, check.check) for check in facts.checks if check.verdict is Verdict.CERTIFIED}
    showing = [arm for arm in facts.candidates if any((arm.name, check) in certified for check in SERVED_BY[served])]
    if served == "greedy":
        showing = [arm for arm in showing if (done := facts.workloads.get(arm.name)) and done.greedy]
    if not showing:
        checks = " or ".join(SERVED_BY[served])
        yield undecided(requirement, f"no candidate arm with such requests has {checks} certified")


def _sampling(facts: RunFacts, wanted: SampledRange) -> Iterator[Shortfall]:
    """Why the run shows nothing about a deployment that samples in this range."""
    arms = [done for arm in facts.candidates if (done := facts.workloads.get(arm.name)) and done.temperatures]
    if not arms:
        text = "no candidate arm sampled: a temperature below 0.1 or a top_k of 1 leaves no choice"
        yield Shortfall("requests", text)
        return
    temperatures = [temperature for done in arms for temperature in done.temperatures]
    low, high = min(temperatures), max(temperatures)
    if wanted.lowest is not None and low > wanted.lowest:
        text = f"the lowest temperature of the run is {low:g}, the deployment goes down to {wanted.lowest:g}"
        yield Shortfall("lowest", text)
    if wanted.highest is not None and high < wanted.highest:
        text = f"the highest temperature of the run is {high:g}, the deployment goes up to {wanted.highest:g}"
        yield Shortfall("highest", text)
    shown = [done.choices for done in arms if done.choices is not None]
    if shown and max(shown) < wanted.choices:
        text = f"p left a choice for {max(shown)} sampled tokens at most, {wanted.choices} are required"
        yield Shortfall("choices", text)


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
