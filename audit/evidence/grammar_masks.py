"""Requests with a grammar, and the second account of their masks."""

from collections.abc import Mapping
from typing import Any, Final

from audit.evidence.records import Evidence
from engine.record.facts import CONSTRAINT
from engine.record.trace import Trace

NO_GRAMMAR: Final = "no request has a grammar"


def constrained(evidence: Evidence) -> bool:
    """True if a request of the candidate has a grammar."""
    return any(request.trace.header.sampling.structured is not None for request in evidence.candidate.requests)


def account_of(trace: Trace) -> Mapping[str, Any] | None:
    """The second account of a request's masks; None if the backend made none."""
    result = trace.header.facts.get(CONSTRAINT)
    return result if isinstance(result, Mapping) and isinstance(result.get("masks"), list) else None
