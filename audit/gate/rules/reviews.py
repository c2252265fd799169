"""Rules on reviews: the approvals that a policy asks for by role, and rejections.

Whoever hands over a bundle could leave a rejection out: where statements count, a signed list must show them all.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from audit.attest.statement import SHORT
from audit.attest.waivers import ReviewOutcome, SignedReview
from audit.gate.decision import Reason, blocked, remark, undecided
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.policy_parts import ReviewRule, TrustedKeys
from audit.gate.waivers import expiry, moment, newest_by_key, problem_of, spoken

REVIEWS = "reviews"
STATEMENTS = "statements"


def review_reasons(facts: RunFacts, policy: Policy, now: datetime) -> Iterator[Reason]:
    """Each review of the run as a line, whatever it is worth; a rejection blocks, and a role may lack approvals."""
    counting = policy.parts.reviews or (policy.parts.waivers and facts.stated.waivers)
    yield from (undecided(STATEMENTS, problem) for problem in facts.unlisted if counting)
    for problem in facts.stated.broken:
        yield remark("waivers", f"a signed statement counts for nothing: {problem}")
    of_run = [review for review in facts.stated.reviews if review.waiver is None]
    rules = policy.parts.reviews
    for review in of_run if not rules else ():
        yield remark(REVIEWS, f"{_words(review)}; the policy asks for no review")
    for rule in rules:
        yield from _of_role(rule, of_run, facts, policy, now)
    roles = {rule.role for rule in rules}
    for review in of_run if rules else ():
        if review.role not in roles:
            yield _without_role(review, facts, policy, now)


def _of_role(
    rule: ReviewRule, reviews: list[SignedReview], facts: RunFacts, policy: Policy, now: datetime
) -> Iterator[Reason]:
    """The reviews in one role."""
    counting = []
    for review in reviews:
        if review.role != rule.role:
            continue
        problem = problem_of(review, facts, policy, rule.keys, now)
        if problem is None:
            counting.append(review)
        else:
            yield _refused(review, problem)
    approvals = 0
    for review in newest_by_key(counting):
        problem = _over(review, rule, now)
        if review.outcome is ReviewOutcome.REJECT and expiry(review.until, now) is None:
            yield blocked(REVIEWS, _words(review), about=rule.role)
        elif problem is not None or review.outcome is ReviewOutcome.REJECT:
            yield _refused(review, problem or "it expired")
        else:
            approvals += 1
            yield _counted(review, rule)
    if approvals < rule.number:
        text = f"{approvals} of {rule.number} approvals in the role {rule.role}"
        yield undecided(REVIEWS, text, about=rule.role)


def _counted(review: SignedReview, rule: ReviewRule) -> Reason:
    """An approval that counts, with its end if it has one."""
    by_age = [] if rule.max_age is None else [review.author.at + rule.max_age]
    until = min([*by_age, *([] if review.until is None else [review.until])], default=None)
    end = "" if until is None else f"counts until {moment(until)}: "
    text = f"{end}{_words(review)}; key of {rule.keys.holder(review.author.key)}"
    return replace(remark(REVIEWS, text), statement=review.id, until=until)


def _over(review: SignedReview, rule: ReviewRule, now: datetime) -> str | None:
    """Why a review counts no more."""
    if rule.max_age is not None and now - review.author.at > rule.max_age:
        return f"it is of {moment(review.author.at)}, older than {rule.max_age}"
    return expiry(review.until, now)


def _without_role(review: SignedReview, facts: RunFacts, policy: Policy, now: datetime) -> Reason:
    """A review in a role that the policy does not ask for: an approval counts for nothing, a listed key's "no" does."""
    trusted = {name: key for rule in policy.parts.reviews for name, key in rule.keys.trusted.items()}
    keys = TrustedKeys(trusted, policy.parts.keys.revoked)
    problem = problem_of(review, facts, policy, keys, now) or expiry(review.until, now)
    if problem is None and review.outcome is ReviewOutcome.REJECT:
        return blocked(REVIEWS, _words(review), about=review.role)
    return _refused(review, problem or "the policy asks for no review in this role")


def _refused(review: SignedReview, problem: str) -> Reason:
    return remark(REVIEWS, f"review {review.id[:SHORT]} counts for nothing: {problem}; {_words(review)}")


def _words(review: SignedReview) -> str:
    role = "" if review.role is None else f" as {review.role}"
    verb = "approved" if review.outcome is ReviewOutcome.APPROVE else "rejected"
    signed = f"{moment(review.author.at)}, key {spoken(review.author.key)}"
    return f"{review.author.actor}{role} {verb} the run: {review.comment} ({signed})"
