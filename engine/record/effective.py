"""The effective configuration of an arm, as its backend reports it and as the store keeps it.

`to_json` gives back the document that `from_json` read, key by key and in its order. A document of an older version,
or of another engine, may lack any key: the field is then None or empty. Imports no model code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

from engine.core.steady import SteadyDrafts

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"


class LoopOwner(StrEnum):
    """The owner of the decoding loop that emitted the tokens."""

    OWN = "own"
    """The project's: its random numbers are regenerated from their key, its p is in float64."""
    FOREIGN = "foreign"
    """Another engine's: it reports the requested and the effective settings."""


@dataclass(frozen=True, slots=True)
class EffectiveNumerics:
    """The target's arithmetic. `promises` is the invariance of its bits, `reason` why it is not stronger."""

    mode: str | None
    promises: str | None
    reason: str | None
    facts: Mapping[str, JSON]
    """The stored form, which includes the request and the probe's reports."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The backend's report on its own record: the level and the reasons why it is not higher."""

    level: int | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BaselineOrigin:
    """The earlier run whose plain arm serves as the reused baseline."""

    run: str
    record_root: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """One arm's effective configuration. None where the document does not state a value of the field's type."""

    decoder: LoopOwner = LoopOwner.OWN
    backend: str | None = None
    proposer: str | None = None
    proposer_shape: str | None = None
    proposer_state: str | None = None
    draft_version: str | None = None
    """Digest of the first version of a draft that learns while serving."""
    gamma: int | None = None
    """Most tokens that a step drafts; None if unbounded or not reported."""
    steady_drafts: SteadyDrafts | None = None
    protocol: str | None = None
    """The verification rule that runs."""
    lossless: bool | None = None
    verifier_options: Mapping[str, JSON] = field(default_factory=dict)
    numerics: EffectiveNumerics | None = None
    beside: Mapping[str, JSON] | None = None
    """Sampling parameters of the requests that share the batch with the arm's own."""
    mixed: Mapping[str, JSON] | None = None
    """Sampling parameters of the neighbours in a mixed batch, and the most own requests for each."""
    rows: int | None = None
    record: str | None = None
    """The record level."""
    fault: str | None = None
    """The injected fault."""
    evidence: Reported | None = None
    requested: Mapping[str, JSON] = field(default_factory=dict)
    """The requested settings of a foreign engine, by the engine's names."""
    in_effect: Mapping[str, JSON] = field(default_factory=dict)
    """The same settings as read back from the engine; settings that it does not report are missing."""
    origin: BaselineOrigin | None = None
    facts: Mapping[str, JSON] = field(default_factory=dict)
    """Everything else that the backend reports, by key; also a known key whose value is of another type."""
    keys: tuple[str, ...] = ()
    """The document's keys, in its order."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Effective:
        """Read a document; a value of an unexpected type is kept under `facts`.

        An engine is foreign if the document states requested settings.
        """
        result = {name: _READ[key](document[key]) for key, name in _FIELDS.items() if key in document}
        stated = {name: value for name, value in result.items() if value is not None}
        decoder = LoopOwner.FOREIGN if REQUESTED in document else LoopOwner.OWN
        read = cls(decoder=decoder, **stated)
        written = read._written()
        facts = {
            key: value
            for key, value in document.items()
            if key not in _FIELDS or not _same(written[key], document[key])
        }
        return cls(decoder=decoder, **stated, facts=facts, keys=tuple(document))

    @property
    def shares_state(self) -> bool:
        """True if drafts depend on other requests, so that another order can draft other tokens."""
        return self.proposer_state == "shared"

    def to_json(self) -> dict[str, JSON]:
        """The document as it is stored."""
        written = self._written()
        return {key: self.facts[key] if key in self.facts else written[key] for key in self.keys}

    def with_fact(self, key: str, value: JSON) -> Effective:
        """The same configuration with one key more."""
        return Effective.from_json({**self.to_json(), key: value})

    def _written(self) -> dict[str, JSON]:
        values = {key: getattr(self, name) for key, name in _FIELDS.items()}
        return {key: _WRITE[key](value) if key in _WRITE else value for key, value in values.items()}


BESIDE: Final = "beside"
"""Key of the neighbours' sampling parameters."""
CANCELLED: Final = "cancelled_after"
"""Key of a neighbour's length under `beside`, where it is cancelled."""
MIXED: Final = "mixed"
"""Key of the neighbours in a mixed batch."""
ORIGIN: Final = "earlier"
"""Key of the run that an arm was taken over from."""
REQUESTED: Final = "requested"


def stated(decoder: LoopOwner, document: Mapping[str, Any]) -> Effective:
    """The configuration that a backend reports before an arm runs.

    Raises:
        ValueError: the document lacks a key that every arm has, has a value of another type, or states requested
            settings of our own engine or none of a foreign one.
    """
    statement = Effective.from_json(document)
    missing = [key for key in REQUIRED if key not in document]
    if missing:
        raise ValueError(f"the effective configuration lacks {', '.join(missing)}")
    if statement.decoder is not decoder:
        raise ValueError(f"the effective configuration of an {decoder} engine has the form of one that is not")
    strange = [key for key in _FIELDS if key in statement.facts]
    if strange:
        raise ValueError(f"{strange[0]} of the effective configuration is {statement.facts[strange[0]]!r}")
    return statement


REQUIRED: Final = ("backend", "protocol", "lossless", "gamma", "rows", "record")
"""Keys that every arm states, reference passes included."""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _mapping(value: Any) -> Mapping[str, JSON] | None:
    return value if isinstance(value, Mapping) else None


def _steady(value: Any) -> SteadyDrafts | None:
    """None for unknown words too, which another version may use."""
    context = _whole(value.get("context")) if isinstance(value, Mapping) else None
    return None if context is None else SteadyDrafts(context, _whole(value.get("most")))


def _numerics(value: Any) -> EffectiveNumerics | None:
    if not isinstance(value, Mapping) or not value:
        return None
    mode, promises, reason = (_text(value.get(name)) for name in ("mode", "promises", "reason"))
    return EffectiveNumerics(mode, promises, reason, value)


def _reported(value: Any) -> Reported | None:
    if not isinstance(value, Mapping):
        return None
    return Reported(_whole(value.get("level")), tuple(map(str, value.get("problems", ()))))


def _origin(value: Any) -> BaselineOrigin | None:
    run = _text(value.get("run")) if isinstance(value, Mapping) else None
    return None if run is None else BaselineOrigin(run, _text(value.get("record_root")))


def _fields(value: Any) -> JSON:
    return None if value is None else asdict(value)


def _same(written: JSON, given: Any) -> bool:
    """True if two values are the same JSON document: equal and of equal types, unlike 1, 1.0 and true."""
    if isinstance(given, Mapping):
        same = isinstance(written, Mapping) and list(written) == list(given)
        return same and all(_same(cast("Mapping[str, JSON]", written)[key], item) for key, item in given.items())
    if isinstance(given, list | tuple):
        listed = isinstance(written, list | tuple) and len(written) == len(given)
        return listed and all(map(_same, cast("Sequence[JSON]", written), given))
    return type(written) is type(given) and bool(written == given)


_KEYS: Final = (
    *("backend", "proposer", "proposer_shape", "proposer_state", "draft_version", "gamma", "steady_drafts", "protocol"),
    *("lossless", "verifier_options", "numerics", BESIDE, MIXED, "rows", "record", "fault", "evidence", REQUESTED),
    *("effective", ORIGIN),
)
_FIELDS: Final[Mapping[str, str]] = {key: {"effective": "in_effect", ORIGIN: "origin"}.get(key, key) for key in _KEYS}
"""Field of each key that is typed."""
_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_FIELDS, _text),
    **dict.fromkeys(("gamma", "rows"), _whole),
    **dict.fromkeys(("verifier_options", BESIDE, MIXED, REQUESTED, "effective"), _mapping),
    "lossless": lambda value: value if isinstance(value, bool) else None,
    "steady_drafts": _steady,
    "numerics": _numerics,
    "evidence": _reported,
    ORIGIN: _origin,
}
_WRITE: Final[Mapping[str, Callable[[Any], JSON]]] = {
    "numerics": lambda value: None if value is None else value.facts,
    "steady_drafts": _fields,
    "evidence": lambda value: None if value is None else {"level": value.level, "problems": list(value.problems)},
    ORIGIN: _fields,
}
