"""Sampling parameters from their JSON form, without the formats around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.core.structured import ConstraintKind, ConstraintSpec
from engine.core.types import SamplingParams


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
