"""A request's settings in its record: its sampling parameters, those requested of a foreign engine, those in effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.core.structured import ConstraintKind, ConstraintSpec
from engine.core.types import SamplingParams

KEY: Final = "request"
"""Of a record's facts."""


@dataclass(frozen=True, slots=True)
class RequestAccount:
    """Settings by name; `effective` has those that the engine showed."""

    requested: Mapping[str, Any] = field(default_factory=dict)
    effective: Mapping[str, Any] = field(default_factory=dict)

    @property
    def differences(self) -> list[str]:
        """Each setting that is not as requested, in words."""
        return [
            f"request's {name}: requested {asked!r}, effective {self.effective[name]!r}"
            for name, asked in sorted(self.requested.items())
            if name in self.effective and self.effective[name] != asked
        ]


def account_of(facts: Mapping[str, Any]) -> RequestAccount:
    """The account in a record; an empty one if the request had no settings."""
    result = facts.get(KEY, {})
    return RequestAccount(result.get("requested", {}), result.get("effective", {}))


def sampling_from_json(document: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters from their JSON form (`SamplingParams.document`); the seed may be text."""
    sampling = dict(document)
    structured = sampling.pop("structured", None)
    if structured is not None:
        structured = ConstraintSpec(**structured | {"kind": ConstraintKind(structured["kind"])})
    pairs: dict[str, Any] = {
        "structured": structured,
        "logit_bias": tuple((int(token), float(bias)) for token, bias in sampling.pop("logit_bias")),
        "bad_words": tuple(tuple(sequence) for sequence in sampling.pop("bad_words")),
        "stop": tuple(sampling.pop("stop")),
        "stop_token_ids": tuple(sampling.pop("stop_token_ids")),
        "seed": int(sampling.pop("seed")),
    }
    return SamplingParams(**sampling, **pairs)
