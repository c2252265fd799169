"""The sentences of a certificate, of its weaker substitutes, and of their limits.

This module computes only names and digests; the page on statistics has the derivation.
"""

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
    headers = [(request.case_id, request.trace.header) for request in arm.requests]
    lines = sorted(repr((case, header.prompt, dataclasses.astuple(header.sampling))) for case, header in headers)
    return hashlib.sha256("\n".join(dict.fromkeys(lines)).encode()).hexdigest()[:12]


def build(arm: ArmRecord) -> str:
    """Digest of the arm's effective configuration."""
    return hashlib.sha256(repr(_canonical(arm.effective.to_json())).encode()).hexdigest()[:12]


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((str(key), _canonical(item)) for key, item in value.items())
    return [_canonical(item) for item in value] if isinstance(value, list | tuple) else value


def subject(arm: ArmRecord) -> str:
    """Subject of a statement: workload, build and protocol."""
    protocols = " and ".join(sorted({str(request.trace.header.protocol) for request in arm.requests}))
    return f"on workload {workload(arm)}, build {build(arm)} and protocol {protocols}"


def certificate_sentence(certificate: Certificate, arm: ArmRecord) -> str:
    """The certificate in words: bound, terms, floor, and the consequence for whole responses."""
    floor = "not measured" if certificate.floor is None else f"{certificate.floor:.3g}"
    return "".join(
        (
            f"{subject(arm)}, {certificate.n_decisions} positions, one per prompt: with confidence ",
            f"{percent(certificate.confidence)} the mean total variation per token between what speculation emits and ",
            f"the reference's law is at most {certificate.eps:.3g} = {certificate.eps_replay:.3g} (",
            f"{certificate.violations} of {certificate.n_decisions} did not replay) + {certificate.eps_numeric:.3g} ",
            f"(anchored mean {certificate.anchored_mean:.3g}); floor without speculation {floor}; ",
            f"{_apart(certificate, longest(arm))}; under A1 to A4",
        )
    )


def _apart(certificate: Certificate, length: int) -> str:
    share = certificate.distinguishable(length)
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


def observation_sentence(observation: Observation, arm: ArmRecord) -> str:
    """The statement from evidence without random numbers."""
    shown = f"at least {observation.distance_low:.3g}" if observation.distance_low > 0 else "no lower bound above 0"
    return (
        f"{subject(arm)}, evidence L{observation.level} without random numbers, {observation.n} tokens: mean total "
        f"variation per token from the recorded p {shown} ({percent(observation.confidence)}); "
        "no upper bound follows from any number of tokens"
    )


def longest(arm: ArmRecord) -> int:
    """Largest allowed number of tokens in a response."""
    return max(request.trace.header.sampling.max_new_tokens for request in arm.requests)


def certificate_numbers(certificate: Certificate, length: int) -> dict[str, Any]:
    """JSON-able; the mean of an empty set is None."""
    numbers = dataclasses.asdict(certificate) | {
        "distinguishable": certificate.distinguishable(length),
        "length": length,
    }
    mean = certificate.anchored_mean
    return numbers | {"unit": str(certificate.unit), "anchored_mean": None if np.isnan(mean) else mean}
