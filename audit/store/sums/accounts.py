"""Sums over an arm's requests: tokens, steps, drafted and accepted tokens.

An endpoint reports no steps: its record has one step per token, so its columns of steps and drafts count nothing. The
server's own accounts are facts of the requests: those in the answers, per request, and the growth of its counters, per
run. This module reads them; what neither gives is None, never 0. Cannot see: other clients and repeated attempts,
which the counters of a server include, and an account that is wrong (see the check reconciliation).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from audit.evidence.records import DIRECTED_PREFIX
from audit.store.base.values import ArmCounts, CountSource, Resolution
from audit.store.tables.runs import ArmRow, RequestRow, TokenTraceRow
from engine.core.errors import TraceError
from engine.record.effective import Effective

STEPLESS: Final = "server_counters"
"""Key of an effective configuration that endpoints state, and only they."""
COUNTED: Final = "server_counters"
"""Key of a request's facts: growth of the counters over one call of the engine, `requests` of them if it is stated."""
ANSWERED: Final = "speculation"
"""Key of a request's facts: the account in its answer."""
OWN: Final = func.substr(RequestRow.case_id, 1, len(DIRECTED_PREFIX)) != DIRECTED_PREFIX
"""The suite's own requests. SQLite's LIKE would take a workload named Directed for that of the auditor."""


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """Steps, drafted and accepted tokens with their origin; None where unknown."""

    steps: int | None
    drafted: int | None
    accepted: int | None
    source: CountSource
    resolution: Resolution | None


UNKNOWN: Final = SpeculationCounts(None, None, None, CountSource.UNKNOWN, None)


def arm_counts(session: Session, arm: ArmRow) -> ArmCounts:
    """Sums over the arm's requests, with the server's accounts where its engine reports no steps."""
    columns = ("n_prompt", "n_output", "n_steps", "n_drafted", "n_accepted", "latency_us")
    sums = [func.coalesce(func.sum(getattr(RequestRow, name)), 0) for name in columns]
    query = select(func.count(), *sums).where(RequestRow.arm_id == arm.id)
    own, added = ([int(value) for value in session.execute(query.where(part)).one()] for part in (OWN, ~OWN))
    requests, prompt, output, steps, drafted, accepted, latency_us = own
    counts = ArmCounts(
        *(requests, prompt, output, steps, drafted, accepted, latency_us), directed=added[0], directed_output=added[2]
    )
    effective = Effective.from_json(arm.effective)
    if reports_steps(effective):
        return counts
    known = dict(facts_of(session, arm))
    rows = session.scalars(select(RequestRow.id).where(RequestRow.arm_id == arm.id, OWN))
    result = endpoint_counts(effective, list(known.values()), [known[row] for row in rows])
    return replace(counts, **asdict(result))


def facts_of(session: Session, arm: ArmRow) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The row and the facts of each request; none for an erased trace, and a damaged one, which reading it reports."""
    # imported with the first trace: numpy and zstandard are not needed to list runs and verdicts
    from engine.record import trace as traces

    query = select(RequestRow.id, TokenTraceRow.payload).select_from(RequestRow)
    query = query.outerjoin(TokenTraceRow, TokenTraceRow.request_id == RequestRow.id)
    for number, payload in session.execute(query.where(RequestRow.arm_id == arm.id)):
        try:
            # an outer join gives None for an erased trace, which its column's type does not say
            yield number, traces.decode(payload).header.facts if payload else {}
        except TraceError:
            yield number, {}


def reports_steps(effective: Effective) -> bool:
    """True if the arm's record holds the engine's own steps."""
    return STEPLESS not in effective.facts


def endpoint_counts(
    effective: Effective, facts: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]
) -> SpeculationCounts:
    """The server's accounts of an arm, from the facts of its requests, answered or not, and of the suite's among them.

    Answers are preferred, because they belong to the requests; they must cover every answered one. Counters must
    cover every request, without a restart, and one answer per request.
    """
    if effective.in_effect.get("speculation") is False:
        return SpeculationCounts(None, 0, 0, CountSource.SERVER, Resolution.RUN)
    answered = [item.get(ANSWERED) for item in own if "error" not in item]
    if answered and all(isinstance(item, Mapping) for item in answered):
        steps, drafted, accepted = (_sum(answered, name) for name in ("steps", "drafted", "accepted"))
        if drafted is not None:
            return SpeculationCounts(steps, drafted, accepted, CountSource.ANSWERS, Resolution.REQUEST)
    return counted(effective, facts)


def _sum(accounts: Sequence[Any], name: str) -> int | None:
    values = [account.get(name) for account in accounts]
    return sum(values) if all(isinstance(value, int) for value in values) else None


def counted(effective: Effective, facts: Sequence[Mapping[str, Any]]) -> SpeculationCounts:
    """The growth of the counters over all calls of the engine; it counts steps that drafted, not all steps."""
    if effective.facts.get("stream") == "both":
        # every request was sent twice
        return UNKNOWN
    grown, requests = [fact[COUNTED] for fact in facts if COUNTED in fact], len(facts)
    covered = sum(int(item.get("requests", requests)) for item in grown)
    if not grown or covered < requests or any(item.get("restarted") for item in grown):
        return UNKNOWN
    drafted, accepted = (_sum(grown, name) for name in ("drafted", "accepted"))
    return (
        UNKNOWN if drafted is None else SpeculationCounts(None, drafted, accepted, CountSource.COUNTERS, Resolution.RUN)
    )
