"""The optional parts of a policy, and their reading from a validated document."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from audit.gate.decision import never_waived
from audit.gate.parameters import Limit
from audit.gate.serving_profile import NO_PROFILE, ServingProfile, profile_of
from audit.store.base.keys import PublicKey, parse_public
from audit.text.documents import Document, Place
from audit.text.durations import HINT, parse_duration
from audit.text.unsafe import quoted
from audit.watch.address import counters_address


@dataclass(frozen=True, slots=True)
class LeastWorkload:
    """Smallest counts of an arm; None asks for nothing."""

    tokens: int | None = None
    requests: int | None = None
    prompts: int | None = None
    domains: int | None = None
    verified_drafts: int | None = None
    batch_size: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Floors:
    """Smallest performance of each arm; None asks for nothing."""

    acceptance: float | None = None
    tokens_per_forward: float | None = None


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Public keys by the person or service that holds them, and keys that are not trusted any more."""

    trusted: Mapping[str, PublicKey] = field(default_factory=dict)
    revoked: tuple[PublicKey, ...] = ()

    def holder(self, key: PublicKey) -> str | None:
        """Who holds a trusted key; None for another key, also for a revoked one."""
        if self.is_revoked(key):
            return None
        return next((name for name, known in self.trusted.items() if known.raw == key.raw), None)

    def is_revoked(self, key: PublicKey) -> bool:
        """True if the policy revokes the key, under whatever name."""
        return any(key.raw == revoked.raw for revoked in self.revoked)


@dataclass(frozen=True, slots=True)
class WaiverRules:
    """Which waivers a policy accepts.

    keys: may ask for a waiver, and approve those of others.
    approvals: different keys that must approve.
    longest: from a waiver's signature to its end.
    requirements: what may be waived.
    """

    keys: TrustedKeys
    approvals: int
    longest: timedelta
    requirements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReviewRule:
    """The reviews that a run needs in one role; `max_age` is that of an approval, None any."""

    role: str
    keys: TrustedKeys
    number: int = 1
    max_age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class WatchRule:
    """The watch of a live server that a run needs.

    days: length of the time that it must cover, up to the decision.
    gaps: largest share of that time without evidence.
    interval: longest time between two readings that counts as covered, and largest age of the last one.
    tolerance: largest share of the run's bound of acceptance that the watch may give away.
    false_alarms: smallest accepted number of expected false alarms in 30 days.
    units: least drafted tokens that were judged, in units of the watch.
    urls: servers each of which must be watched; empty accepts any that a watch compares with a run of these models.
    models: names that the server gives the models; empty stands for all that it serves.
    """

    days: int
    gaps: float = 0.05
    interval: timedelta = timedelta(hours=1)
    tolerance: float = 0.1
    false_alarms: float = 0.01
    units: int = 3200
    urls: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyParts:
    """Optional parts; the defaults ask for nothing."""

    signed: bool = False
    stored_verdicts: bool = False
    newest: bool = True
    attempts: int | None = None
    parameters: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)
    workload: LeastWorkload = LeastWorkload()
    serving: ServingProfile = NO_PROFILE
    floors: Floors = Floors()
    keys: TrustedKeys = TrustedKeys()
    waivers: WaiverRules | None = None
    reviews: tuple[ReviewRule, ...] = ()
    reviews_within: timedelta = timedelta(days=7)
    watched: WatchRule | None = None
    rego: tuple[str, ...] = ()


NO_WORKLOAD: Final = LeastWorkload()
NO_PARTS: Final = PolicyParts()


def read_parts(document: Document) -> PolicyParts:
    """The parts of a validated policy. Raises UserError: a duration, key or parameter that does not exist."""
    data: Mapping[str, Any] = document.data
    evidence: Mapping[str, Any] = data["evidence"]
    keys = _keys(document, data.get("keys", {}))
    return PolicyParts(
        signed=evidence.get("signed", False),
        stored_verdicts=evidence.get("stored_verdicts", False),
        newest=evidence.get("newest", True),
        attempts=evidence.get("attempts"),
        parameters={
            check: {name: Limit(**limit) for name, limit in limits.items()}
            for check, limits in data.get("parameters", {}).items()
        },
        workload=LeastWorkload(**data.get("workload", {})),
        serving=profile_of(data),
        floors=Floors(**data.get("floors", {})),
        keys=keys,
        waivers=_waivers(document, data["waivers"], keys) if "waivers" in data else None,
        reviews=tuple(_review(document, role, rule, keys) for role, rule in data.get("reviews", {}).items()),
        reviews_within=duration_at(document, ("evidence", "reviews_within"), evidence.get("reviews_within", "7d")),
        watched=_watched(document, data["watched"]) if "watched" in data else None,
        rego=tuple(digest.removeprefix("sha256:") for digest in data.get("rego", ())),
    )


def _waivers(document: Document, rules: Mapping[str, Any], keys: TrustedKeys) -> WaiverRules:
    for index, name in enumerate(rules["requirements"]):
        if never_waived(name):
            raise document.error(("waivers", "requirements", index), f"{quoted(name)} can never be waived; remove it")
    trusted, approvals = _holders(document, ("waivers", "keys"), rules["keys"]), rules.get("approvals", 1)
    # the requester's key approves nothing
    _require_enough(document, ("waivers", "approvals"), approvals, trusted, spare=1)
    longest = duration_at(document, ("waivers", "longest"), rules["longest"])
    return WaiverRules(TrustedKeys(trusted, keys.revoked), approvals, longest, tuple(rules["requirements"]))


def _review(document: Document, role: str, rule: Mapping[str, Any], keys: TrustedKeys) -> ReviewRule:
    place, age = ("reviews", role), rule.get("max_age")
    trusted, number = _holders(document, (*place, "keys"), rule["keys"]), rule.get("number", 1)
    _require_enough(document, (*place, "number"), number, trusted, spare=0)
    max_age = None if age is None else duration_at(document, (*place, "max_age"), age)
    return ReviewRule(role, TrustedKeys(trusted, keys.revoked), number, max_age)


def _watched(document: Document, rule: Mapping[str, Any]) -> WatchRule:
    given = {**rule, **{name: tuple(rule.get(name, ())) for name in ("urls", "models")}}
    given["urls"] = tuple(map(counters_address, given["urls"]))
    if "interval" in given:
        given["interval"] = duration_at(document, ("watched", "interval"), given["interval"])
    return WatchRule(**given)


def _require_enough(
    document: Document, place: Place, number: int, keys: Mapping[str, PublicKey], *, spare: int
) -> None:
    different = len({key.raw for key in keys.values()})
    if number > different - spare:
        needed = f"{place[-1]} is {number}, which needs {number + spare} different keys; {different} are listed"
        raise document.error(place, needed)


def _keys(document: Document, keys: Mapping[str, Any]) -> TrustedKeys:
    trusted = _holders(document, ("keys", "trusted"), keys.get("trusted", {}))
    revoked = [_key(document, ("keys", "revoked", i), text) for i, text in enumerate(keys.get("revoked", ()))]
    return TrustedKeys(trusted, tuple(revoked))


def _holders(document: Document, place: Place, keys: Mapping[str, str]) -> dict[str, PublicKey]:
    return {name: _key(document, (*place, name), text) for name, text in keys.items()}


def _key(document: Document, place: Place, text: str) -> PublicKey:
    key = parse_public(text)
    if key is None:
        raise document.error(place, f"{quoted(text)} is no public key; write what audit keys show FILE prints")
    return key


def duration_at(document: Document, place: tuple[str | int, ...], text: str) -> timedelta:
    """A duration above 0 in a document. Raises UserError: another text."""
    age = parse_duration(text)
    if not age:
        name = place[-1]
        raise document.error(place, f"{name} is {quoted(text)}; {HINT}")
    return age
