"""Who answered: the names that a service gives with every answer, and those of its pages around an arm."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from audit.evidence.records import ArmRecord
from engine.record.effective import Effective
from engine.record.facts import VERSION_AFTER

ANSWER: Final = "answer"
"""Key of a record's facts: what the answer says about itself."""
STREAMED: Final = "streamed_answer"
"""The same of its streamed form, where a request was sent both ways."""
CONFIGURED: Final = ("model", "system_fingerprint", "provider", "service_tier")
"""Names of a configuration: two of them in one arm are two services."""


def answered_by_service(effective: Effective) -> bool:
    """True if the arm's answers came from an address."""
    return "url" in effective.facts


@dataclass(frozen=True, slots=True)
class Identity:
    """The names in one answer; None where it lacks one. `instance`: headers that name a machine or a route."""

    model: str | None = None
    system_fingerprint: str | None = None
    provider: str | None = None
    service_tier: str | None = None
    instance: str | None = None

    @property
    def words(self) -> str:
        """The names in one line."""
        named = {"fingerprint": self.system_fingerprint, "provider": self.provider, "tier": self.service_tier}
        more = [f"{key} {value!r}" for key, value in {**named, "instance": self.instance}.items() if value is not None]
        return ", ".join(["no model" if self.model is None else repr(self.model), *more])


@dataclass(frozen=True, slots=True)
class AnsweredBy:
    """One identity of an arm, how many answers have it, and the request whose answer was the first."""

    identity: Identity
    answers: int
    first: str

    def to_json(self) -> dict[str, Any]:
        """The names with the counts."""
        return {**asdict(self.identity), "answers": self.answers, "first": self.first}


def identity_of(told: Mapping[str, Any]) -> Identity:
    """The identity in what an answer says about itself."""
    names = {name: None if told.get(name) is None else str(told[name]) for name in CONFIGURED}
    route = told.get("route") or {}
    return Identity(**names, instance=", ".join(f"{key}: {route[key]}" for key in sorted(route)) or None)


def answered_by(arm: ArmRecord) -> tuple[AnsweredBy, ...]:
    """The identities of an arm's answers, in the order in which they first appear."""
    seen: dict[Identity, AnsweredBy] = {}
    for request in arm.requests:
        facts = request.trace.header.facts
        for told in (facts.get(ANSWER, {}), *([facts[STREAMED]] if STREAMED in facts else [])):
            identity = identity_of(told)
            before = seen.get(identity, AnsweredBy(identity, 0, request.request_id))
            seen[identity] = AnsweredBy(identity, before.answers + 1, before.first)
    return tuple(seen.values())


@dataclass(frozen=True, slots=True)
class VersionPair:
    """The server's version before an arm and behind it; None where no page states it."""

    before: str | None
    after: str | None


def versions(arm: ArmRecord) -> VersionPair:
    """The versions around an arm; the request that ended last holds the later one."""
    told = arm.effective.facts.get("version")
    later = (request.trace.header.facts.get(VERSION_AFTER) for request in arm.requests)
    after = next((str(value) for value in later if value is not None), None)
    return VersionPair(None if told is None else str(told), after)
