"""The order in which the requests of an arm began, for statistics over the course of a run.

A store has requests in the order in which they finished. Where several run together, those with more accepted drafts
finish first, so that order alone makes a trend. Engines that record the round of an admission give the order exactly;
of others that run several requests together, workloads come in the order of the suite and requests by their names,
which depends on no outcome.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.evidence.coverage.batch import stay_of
from audit.evidence.records import ArmRecord
from audit.store.sums.drafts import RequestDrafts


@dataclass(frozen=True, slots=True)
class BegunOrder:
    """Requests in order; `named` if they stand by their names, because nobody recorded when each began."""

    requests: tuple[RequestDrafts, ...]
    named: bool


def in_begun_order(
    requests: Sequence[RequestDrafts], record: ArmRecord, together: int | None, workloads: Sequence[str]
) -> BegunOrder:
    """Order an arm's requests, which are given as they finished.

    together: how many the engine runs at a time, None if unknown. workloads: their names in the order of the suite.
    """
    if together == 1:
        return BegunOrder(tuple(requests), named=False)
    places = {name: at for at, name in enumerate(workloads)}
    stays = {request.key: stay_of(request) for request in record.requests}
    result = [stays.get(f"{one.key.case_id}#{one.key.sample}") for one in requests]
    known = [stay for stay in result if stay is not None]
    # call of the engine, in the order of its first answer, round and row of each admission
    calls = {call: at for at, call in enumerate(dict.fromkeys(stay.call for stay in known))}
    admitted = [(calls[stay.call], stay.start, -1 if stay.row is None else stay.row) for stay in known]
    named = len(admitted) < len(requests)
    begun = [()] * len(requests) if named else admitted
    keys = [(key, _by_name(one, places)) for key, one in zip(begun, requests, strict=True)]
    order = sorted(range(len(requests)), key=lambda at: keys[at])
    return BegunOrder(tuple(requests[at] for at in order), named)


def _by_name(one: RequestDrafts, workloads: Mapping[str, int]) -> tuple[Any, ...]:
    """Numbers in a name count as numbers, so p2 comes before p10."""
    case = one.key.case_id
    parts = tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", case))
    return workloads.get(case.partition("/")[0], len(workloads)), parts, one.key.sample
