"""Signed waivers: an unmet requirement becomes a remark if the policy accepts the waiver of exactly this reason.

A waiver that is refused changes nothing and is listed with the cause. Never waived: a fault that a check found, a lossy
or broken arm, a record, log, signature or arm that is missing or not intact, a subject, a review, a clock.

Whether a signed waiver or review counts for a run under a policy, before any rule of its own kind.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from audit.attest.statement import SHORT
from audit.attest.waivers import ReviewOutcome, SignedReview, Waiver
from audit.evidence.verdicts import Verdict
from audit.gate.decision import CLOCK, Decision, Reason, never_waived, remark
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.policy_parts import TrustedKeys, WaiverRules
from audit.store.base.keys import PublicKey
from audit.text.durations import CLOCK_SKEW


def problem_of(
    item: Waiver | SignedReview, facts: RunFacts, policy: Policy, keys: TrustedKeys, now: datetime
) -> str | None:
    """Why a waiver or review is not about this run and policy, not signed by a key that counts, or from the future."""
    run, author = facts.run, item.author
    if item.run.ulid != run.ulid:
        return f"it is of run {item.run.ulid}"
    if item.run.record_root != run.record_root:
        return f"it is of a record of this run with another root, sha256:{item.run.record_root}"
    if item.policy is not None and item.policy.sha256 != policy.sha256:
        return f"it is under policy {item.policy.name} sha256:{item.policy.sha256}, not under this one"
    if keys.is_revoked(author.key):
        return f"it is signed by the key {spoken(author.key)}, which the policy revokes"
    if keys.holder(author.key) is None:
        return f"it is signed by the key {spoken(author.key)}, which the policy does not list for it"
    if author.at > now + CLOCK_SKEW:
        return f"it is not valid yet: it was signed in the future, {moment(author.at)}"
    return None


def expiry(until: datetime | None, now: datetime) -> str | None:
    """Why something that ends is over; None if it is not."""
    return f"it expired on {moment(until)}" if until is not None and until <= now else None


def newest_by_key(reviews: Iterable[SignedReview]) -> list[SignedReview]:
    """The last review of each key; of two of one moment, the rejection."""
    newest: dict[bytes, SignedReview] = {}
    for review in sorted(reviews, key=lambda review: (review.author.at, review.outcome.value)):
        newest[review.author.key.raw] = review
    return list(newest.values())


def spoken(key: PublicKey) -> str:
    """A key for a message: its name and id."""
    return f"{key.name} ({key.id.hex()})"


def moment(at: datetime) -> str:
    """A moment for a message."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


NO_WAIVERS = "the policy accepts no waivers"


@dataclass(frozen=True, slots=True)
class Approval:
    """Who approved a waiver, and why others did not count; `rejected` is the word of the one who said no.

    until: end of the first approval that ends.
    """

    by: tuple[str, ...]
    refused: tuple[str, ...]
    rejected: str | None = None
    until: datetime | None = None


def waived(reasons: Sequence[Reason], facts: RunFacts, policy: Policy, now: datetime) -> tuple[Reason, ...]:
    """The reasons with those made remarks that a valid waiver names, and a remark for every other waiver."""
    result, notes = list(reasons), []
    for waiver in facts.stated.waivers:
        approval = accepted(waiver, facts, policy, now)
        problem = approval if isinstance(approval, str) else None
        places = [i for i, reason in enumerate(result) if reason.name == waiver.unmet]
        if problem is None and len(places) == 1:
            problem = protection(result[places[0]], facts)
        elif problem is None:
            problem = f"it waives {len(places)} requirements at once" if places else "no such requirement is unmet"
        if problem is None and isinstance(approval, Approval):
            result[places[0]] = _remark(result[places[0]], waiver, approval, policy)
        else:
            text = f"waiver {waiver.id[:SHORT]} of {waiver.unmet} by {waiver.author.actor} counts for nothing"
            notes.append(remark("waivers", f"{text}: {problem}"))
    return (*result, *notes)


def protection(reason: Reason, facts: RunFacts) -> str | None:
    """Why no waiver touches a reason; None if one may."""
    if never_waived(reason.requirement) or reason.about == CLOCK:
        return f"{reason.requirement} can never be waived"
    result = any(
        check.verdict is Verdict.FAULT and (check.arm, check.check) == (reason.arm, reason.check)
        for check in facts.checks
    )
    return f"{reason.check} found a fault, which can never be waived" if result else None


def accepted(waiver: Waiver, facts: RunFacts, policy: Policy, now: datetime) -> Approval | str:
    """The approval of a waiver that the policy accepts, else why it does not."""
    rules = policy.parts.waivers
    if rules is None:
        return NO_WAIVERS
    problem = request_problem(waiver, facts, policy, now) or expiry(waiver.until, now)
    if problem is not None:
        return problem
    approval = approval_of(waiver, rules, facts, policy, now)
    return _unapproved(approval, rules) or approval


def request_problem(waiver: Waiver, facts: RunFacts, policy: Policy, now: datetime) -> str | None:
    """Why the policy would not accept a waiver even if it were approved."""
    rules = policy.parts.waivers
    if rules is None:
        return NO_WAIVERS
    requirement = waiver.unmet.requirement
    problem = problem_of(waiver, facts, policy, rules.keys, now)
    if problem is not None:
        return problem
    if never_waived(requirement):
        return f"{requirement} can never be waived"
    if requirement not in rules.requirements:
        return f"the policy accepts no waiver of {requirement}, only of: {', '.join(rules.requirements)}"
    if waiver.until - waiver.author.at > rules.longest:
        return f"it lasts {waiver.until - waiver.author.at}, longer than {rules.longest}"
    return None


def _unapproved(approval: Approval, rules: WaiverRules) -> str | None:
    if approval.rejected is not None:
        return approval.rejected
    if len(approval.by) >= rules.approvals:
        return None
    return "; ".join([f"{len(approval.by)} of {rules.approvals} approvals", *approval.refused])


def approval_of(waiver: Waiver, rules: WaiverRules, facts: RunFacts, policy: Policy, now: datetime) -> Approval:
    """The reviews of a waiver: the newest of each key counts, never an approval by its own requester."""
    counting, refused, by, rejected = [], [], [], None
    ends: list[datetime] = []
    for review in facts.stated.reviews:
        if review.waiver == waiver.id:
            problem = problem_of(review, facts, policy, rules.keys, now)
            counting += [review] if problem is None else []
            refused += [] if problem is None else [_refused(review, problem)]
    for review in newest_by_key(counting):
        over = expiry(review.until, now)
        if review.outcome is ReviewOutcome.REJECT:
            rejected = rejected or f"{review.author.actor} rejected it: {review.comment}"
        elif over is not None or self_approved(waiver, review):
            refused.append(_refused(review, over or "it is the requester's own"))
        else:
            by.append(f"{review.author.actor} (key of {rules.keys.holder(review.author.key)})")
            ends += [] if review.until is None else [review.until]
    return Approval(tuple(by), tuple(refused), rejected, min(ends, default=None))


def self_approved(waiver: Waiver, review: SignedReview) -> bool:
    """True if one key or one actor asks and approves."""
    ours, theirs = waiver.author, review.author
    return ours.key.raw == theirs.key.raw or _folded(ours.actor) == _folded(theirs.actor)


def _folded(name: str) -> str:
    """A name without what only looks different."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _refused(review: SignedReview, problem: str) -> str:
    return f"the review by {review.author.actor} counts for nothing: {problem}"


def _remark(reason: Reason, waiver: Waiver, approval: Approval, policy: Policy) -> Reason:
    """The reason as a remark that names the waiver: id, requester, approvers, end and cause."""
    rules = policy.parts.waivers
    assert rules is not None, "an accepted waiver has rules"
    until = min(waiver.until, approval.until or waiver.until)
    holder = rules.keys.holder(waiver.author.key)
    approved = f", approved by {', '.join(approval.by)}" if approval.by else ""
    ticket = "" if waiver.ticket is None else f", ticket {waiver.ticket}"
    text = (
        f"waived until {moment(until)} by {waiver.author.actor} (key of {holder}){approved}: {waiver.reason} "
        f"(waiver {waiver.id[:SHORT]}{ticket}); without it {reason.answer.words}: {reason.text}"
    )
    return Reason(Decision.ALLOW, reason.requirement, text, reason.arm, reason.check, reason.about, waiver.id, until)
