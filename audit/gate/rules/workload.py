"""Rules on what a run exercised: speculation, the least workload of arms, what the deployment serves, floors."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from audit.evidence.verdicts import Verdict
from audit.gate.decision import Reason, blocked, remark, undecided
from audit.gate.facts import ArmWorkload, RunFacts, SampledRequests
from audit.gate.policy import Policy
from audit.gate.policy_parts import LeastWorkload
from audit.gate.serving_profile import (
    FREE_FROM,
    LEAST_TOP_K,
    LEAST_TOP_P,
    MOST_MIN_P,
    SampledRange,
    SampledSetting,
    ServingProfile,
    narrowed,
)
from audit.gate.subjects import Subject
from audit.store import StoredArm
from audit.store.base.governance import used_drafts

SERVED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "greedy": ("greedy_equality", "bitwise"),
    "structured": ("schema_conformance", "constraint_replay"),
    "tools": ("tool_call_equality",),
    "filters": ("filter_equality", "no_leak"),
    "streaming": ("surface_parity", "no_leak"),
    "logprobs": ("logprob_closeness", "replay"),
    "adapters": ("replay", "law", "token_law", "greedy_equality", "bitwise"),
}
"""Checks one of which must be certified in an arm that shows what a deployment serves."""
ASKED: Final = ("greedy", "streaming", "adapters")
"""Kinds that these checks do not need: the arm's requests must be of the kind."""


def workload_reasons(
    facts: RunFacts, policy: Policy, asked: ServingProfile | None, subjects: Sequence[Subject]
) -> Iterator[Reason]:
    """Why the run did not exercise what the policy asks for; `asked` is a deployment's profile within the policy's."""
    for arm in facts.candidates:
        yield from _speculation(arm)
        for lack in short_of(facts, arm, policy.parts.workload):
            yield undecided("workload", f"arm {arm.name}: {lack.text}", arm.name, about=lack.count)
        yield from _floors(arm, policy)
    if asked is not None:
        yield from _beyond(policy.parts.serving, asked)
    profile = narrowed(policy.parts.serving, asked)
    for served in profile.serves:
        yield from _served(facts, served, profile.sampled, _named_drafts(facts, policy, profile, subjects))


def _beyond(policy: ServingProfile, asked: ServingProfile) -> Iterator[Reason]:
    """Why a deployment's profile is not within the policy's, and a remark on what it leaves out of that."""
    listed, ours, own = policy.serves, policy.sampled, asked.sampled
    for word in sorted(set(asked.serves) - set(listed)) if listed else ():
        text = f"the policy lets a deployment serve {', '.join(listed)}; use one that lists it"
        yield undecided(f"serves {word}", text)
    low, high = ours.lowest or 0.0, ours.highest or math.inf
    stray = [f"temperature {at:g}" for at in own.temperatures if not low <= at <= high]
    stray += [str(setting) for setting in own.settings if ours.settings and setting not in ours.settings]
    if stray:
        yield undecided("serves sampled", f"the policy lets no deployment sample at {'; '.join(dict.fromkeys(stray))}")
    if asked.sha256 is not None or set(asked.serves) < set(listed):
        named = ", ".join(asked.serves) if asked.sha256 is None else f"sha256:{asked.sha256}"
        yield remark("serves", f"{named} alone, of the policy's {', '.join(listed)}")


def _named_drafts(facts: RunFacts, policy: Policy, profile: ServingProfile, subjects: Sequence[Subject]) -> list[str]:
    """The draft models to deploy, by their names in the suite."""
    digests = {*policy.digests.values(), *(subject.sha256 for subject in subjects)}
    for stated in (policy.parts.serving, profile):
        digests |= {*stated.deployed.models.get("draft", ())}
    return [part.role for part in facts.run.artifacts if part.kind == "draft" and part.sha256 in digests]


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


def _served(facts: RunFacts, served: str, sampled: SampledRange, drafts: Sequence[str]) -> Iterator[Reason]:
    """Why nothing shows a kind of requests; each named draft must have drafted for an arm that shows it."""
    requirement = f"serves {served}"
    if served == "sampled":
        for lack in _sampling(facts, sampled, drafts):
            yield undecided(requirement, lack.text, about=lack.count)
        return
    certified = {(check.arm, check.check) for check in facts.checks if check.verdict is Verdict.CERTIFIED}
    showing = [arm for arm in facts.candidates if any((arm.name, check) in certified for check in SERVED_BY[served])]
    if served in ASKED:
        showing = [arm for arm in showing if (done := facts.workloads.get(arm.name)) and served in done.features]
    if not showing:
        checks = " or ".join(SERVED_BY[served])
        yield undecided(requirement, f"no candidate arm with such requests has {checks} certified")
    for lack in _undrafted(showing, drafts, "with such requests"):
        yield undecided(requirement, lack.text, about=lack.count)


def _undrafted(showing: Sequence[StoredArm], drafts: Sequence[str], how: str) -> Iterator[Shortfall]:
    """The drafts to deploy with which none of the arms that show something drafted."""
    used = used_drafts([arm.spec for arm in showing]) if showing else None
    for draft in sorted(set(drafts) - used) if used is not None else ():
        yield Shortfall(draft, f"no candidate arm {how} drafted with {draft}, which is to be deployed")


SAMPLED_FROM: Final = 0.1
"""Smallest temperature of a stated range at which a request counts as sampled."""


def _sampling(facts: RunFacts, wanted: SampledRange, drafts: Sequence[str]) -> Iterator[Shortfall]:
    """Why the run shows nothing about a deployment that samples so."""
    for setting in wanted.settings:
        arms, shown = _shown(facts, setting.__eq__)
        yield from _choices(shown, wanted.choices, f"at {setting}")
        yield from _undrafted(arms, drafts, f"that sampled at {setting}")
    if wanted.settings:
        return
    least = SAMPLED_FROM if wanted.temperatures else FREE_FROM
    arms, free = _shown(facts, lambda setting: setting.free and setting.temperature >= least)
    text = (
        f"freely: temperature {least} or more, top_k off or {LEAST_TOP_K} or more, top_p {LEAST_TOP_P} or more, "
        f"min_p {MOST_MIN_P} or less, no bias; a deployment that samples otherwise says so in a serving profile"
    )
    yield from _choices(free, wanted.choices, text)
    yield from _undrafted(arms, drafts, "that sampled freely")
    yield from _reach(free, wanted)


def _shown(facts: RunFacts, shows: Callable[[SampledSetting], bool]) -> tuple[list[StoredArm], list[SampledRequests]]:
    """The candidate arms that answered certain requests, and these requests by setting."""
    done = {arm.name: of.sampled for arm in facts.candidates if (of := facts.workloads.get(arm.name))}
    parts = {name: [part for part in of if shows(part.setting)] for name, of in done.items()}
    return [arm for arm in facts.candidates if parts.get(arm.name)], [part for of in parts.values() for part in of]


def _choices(shown: Sequence[SampledRequests], least: int, how: str) -> Iterator[Shortfall]:
    if not shown:
        yield Shortfall("requests", f"no candidate arm sampled {how}")
    known = [part.choices for part in shown if part.choices is not None]
    if known and sum(known) < least:
        text = f"p left a choice for {sum(known)} sampled tokens, {least} are required; sampled {how}"
        yield Shortfall("choices", text)


def _reach(shown: Sequence[SampledRequests], wanted: SampledRange) -> Iterator[Shortfall]:
    """Why the temperatures of these requests do not reach from one end of a range to the other."""
    if not shown:
        return
    temperatures = [part.setting.temperature for part in shown]
    low, high = min(temperatures), max(temperatures)
    if wanted.lowest is not None and low > wanted.lowest:
        text = f"the lowest temperature of the run is {low:g}, the deployment goes down to {wanted.lowest:g}"
        yield Shortfall("lowest", text)
    if wanted.highest is not None and high < wanted.highest:
        text = f"the highest temperature of the run is {high:g}, the deployment goes up to {wanted.highest:g}"
        yield Shortfall("highest", text)
