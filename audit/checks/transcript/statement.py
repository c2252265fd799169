"""The sentences of a certificate, of its weaker substitutes, and of their limits.

This module computes only names and digests; the page on statistics has the derivation.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from audit.evidence.records import ArmRecord
from audit.stats.certificate import Certificate, Observation
from audit.stats.multiplicity import percent

ASSUMPTIONS: Final = (
    "A1: random numbers are independent, of the rows and of each other, between purposes and requests",
    "A2: the record holds what was used",
    "A3: every proposal that the engine drew is in the record",
    "A4: prompts are drawn independently from the workload",
)
NOT_CLAIMED: Final = (
    "an upper bound of the distance from tokens alone",
    "prompts, lengths, batch shapes, sampling parameters and hardware outside the workload, and later builds",
    "that the reference is the right model",
    "that the record is honest",
    "quality, safety or meaning",
    "absence of faults smaller than the bound",
    "randomness of the random numbers beyond the audit of their reuse and independence",
)


def workload(arm: ArmRecord) -> str:
    """Digest of the arm's prompts and sampling parameters, independent of their order."""
    headers = [(each.case_id, each.trace.header) for each in arm.requests]
    lines = sorted(repr((case, header.prompt, dataclasses.astuple(header.sampling))) for case, header in headers)
    return hashlib.sha256("\n".join(dict.fromkeys(lines)).encode()).hexdigest()[:12]


def build(arm: ArmRecord) -> str:
    """Digest of the arm's effective configuration."""
    return hashlib.sha256(repr(_canonical(arm.effective.to_json())).encode()).hexdigest()[:12]


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((str(key), _canonical(each)) for key, each in value.items())
    return [_canonical(each) for each in value] if isinstance(value, list | tuple) else value


def subject(arm: ArmRecord) -> str:
    """Subject of a statement: workload, build and protocol."""
    protocols = " and ".join(sorted({str(each.trace.header.protocol) for each in arm.requests}))
    return f"on workload {workload(arm)}, build {build(arm)} and protocol {protocols}"


def certificate_sentence(found: Certificate, arm: ArmRecord) -> str:
    """The certificate in words: bound, terms, floor, and the consequence for whole responses."""
    floor = "not measured" if found.floor is None else f"{found.floor:.3g}"
    return "".join(
        (
            f"{subject(arm)}, {found.n_decisions} positions, one per prompt: with confidence ",
            f"{percent(found.confidence)} the mean total variation per token between what speculation emits and the ",
            f"reference's law is at most {found.eps:.3g} = {found.eps_replay:.3g} ({found.violations} of ",
            f"{found.n_decisions} did not replay) + {found.eps_numeric:.3g} (anchored mean ",
            f"{found.anchored_mean:.3g}); floor without speculation {floor}; ",
            f"{_apart(found, longest(arm))}; under A1 to A4",
        )
    )


def _apart(found: Certificate, length: int) -> str:
    share = found.distinguishable(length)
    if share >= 1.0:
        return f"of whole responses of {length} tokens this says nothing"
    return f"of responses of {length} tokens any observer can tell apart at most a share of {share:.3g}"


def replay_sentence(eps_replay: float, positions: int, confidence: float, arm: ArmRecord) -> str:
    """The statement without the reference's rows."""
    return (
        f"{subject(arm)}, {positions} positions, one per prompt: with confidence {percent(confidence)} the emitted "
        f"tokens' law is at most {eps_replay:.3g} per token from the recorded p; whether that p is the target's was "
        "not measured"
    )


def observation_sentence(found: Observation, arm: ArmRecord) -> str:
    """The statement from evidence without random numbers."""
    shown = f"at least {found.distance_low:.3g}" if found.distance_low > 0 else "no lower bound above 0"
    return (
        f"{subject(arm)}, evidence L{found.level} without random numbers, {found.n} tokens: mean total variation per "
        f"token from the recorded p {shown} ({percent(found.confidence)}); "
        "no upper bound follows from any number of tokens"
    )


def longest(arm: ArmRecord) -> int:
    """Largest allowed number of tokens in a response."""
    return max(each.trace.header.sampling.max_new_tokens for each in arm.requests)


def observation_numbers(found: Observation) -> dict[str, Any]:
    """JSON-able."""
    return dataclasses.asdict(found)


def certificate_numbers(found: Certificate, length: int) -> dict[str, Any]:
    """JSON-able; the mean of an empty set is None."""
    numbers = dataclasses.asdict(found) | {"distinguishable": found.distinguishable(length), "length": length}
    mean = found.anchored_mean
    return numbers | {"unit": str(found.unit), "anchored_mean": None if np.isnan(mean) else mean}
