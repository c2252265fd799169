"""Whether a signed waiver or review counts for a run under a policy, before any rule of its own kind."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from audit.attest.waivers import SignedReview, Waiver
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.policy_parts import TrustedKeys
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
