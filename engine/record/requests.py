"""A request's settings in its record: its sampling parameters, those requested of a foreign engine, those in effect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
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
        if not all(isinstance(value, str) for value in structured.values()):
            raise TypeError("a grammar is of another kind")
        structured = ConstraintSpec(**structured | {"kind": ConstraintKind(structured["kind"])})
    stop, ignore_eos = tuple(sampling.pop("stop")), sampling.pop("ignore_eos")
    if not all(isinstance(text, str) for text in stop) or not isinstance(ignore_eos, bool):
        raise TypeError("a stop string or ignore_eos is of another kind")
    pairs: dict[str, Any] = {
        "structured": structured,
        "logit_bias": tuple((int(token), float(bias)) for token, bias in sampling.pop("logit_bias")),
        "bad_words": tuple(tuple(map(index, sequence)) for sequence in sampling.pop("bad_words")),
        "stop": stop,
        "stop_token_ids": tuple(map(index, sampling.pop("stop_token_ids"))),
        "ignore_eos": ignore_eos,
        "seed": int(sampling.pop("seed")),
        **{name: index(sampling.pop(name)) for name in ("top_k", "min_tokens", "max_new_tokens")},
    }
    return SamplingParams(**sampling, **pairs)
