"""Statements beside their second accounts: the loop's own words about itself, which no number of a record shows.

The header of a request is compared with the arm's statement and with the same request of the baseline, the arm's
statement with those of its baseline and of its drafts made again, sizes of batches with the rounds of all requests.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from audit.evidence.records import ArmKind, ArmRecord, Evidence, RequestRecord
from audit.evidence.verdicts import Finding
from engine.backends.neighbour import Mixed, contrasting
from engine.record.effective import MIXED
from engine.record.trace import TraceHeader

WHOLE_ARM: Final = "the arm"
OF_TARGET: Final = ("backend", "target", "context", "numerics", "rows", "stream", "torch_threads")
"""Keys of a statement that a baseline shares with its candidates."""
OF_PASSES: Final = frozenset(("rows", "record", "fault", "pass", "copies", "repeats", "measured"))
"""Keys in which a pass along a record differs from the arm that it follows."""
PLACE: Final = frozenset(("call", "row", "round"))
"""Facts about the place of a request in its batch."""
OFFERED: Final = ("offered", "choice", "template", "parser")
OF_ARMS: Final = ("coupled_draft", "kept_share")
"""Fields of a header that all requests of an arm share."""
OF_REQUESTS: Final = ("prompt", "sampling", "eos_ids", "vocabulary", "stream")
"""Fields of a header that a request has in every arm."""


def statement_findings(evidence: Evidence) -> Iterator[Finding]:
    """Contradictions of the headers and the statement of an arm of our own loop."""
    arm = evidence.candidate
    theirs = {} if evidence.baseline is None else _headers(evidence.baseline)
    batches, stated = _Batches(arm), arm.effective.to_json()
    first = arm.requests[0].trace.header
    for request in arm.requests:
        header = request.trace.header
        pairs = _of_arm(request, stated)
        pairs |= {name: (getattr(header, name), getattr(first, name)) for name in OF_ARMS}
        if request.key in theirs:
            other = theirs[request.key]
            pairs |= {name: (getattr(header, name), getattr(other, name)) for name in OF_REQUESTS}
            pairs["tools"] = (_offer(header), _offer(other))
        for name, (said, true) in pairs.items():
            if said != true:
                message = f"its header says {name} {said!r:.80}, elsewhere it is {true!r:.80}"
                yield Finding(request.request_id, 0, message)
        yield from batches.findings(request)
    yield from _of_arms(evidence)


def _headers(arm: ArmRecord) -> Mapping[str, TraceHeader]:
    return {request.key: request.trace.header for request in arm.requests}


def _offer(header: TraceHeader) -> Mapping[str, Any]:
    """The offered tools and how calls are written, which do not depend on the answer."""
    fact = header.facts.get("tools", {})
    return {name: fact.get(name) for name in OFFERED}


def _of_arm(request: RequestRecord, stated: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The header's words beside those of its arm, by name; an arm may state nothing."""
    header = request.trace.header
    said = {
        "proposer": header.proposer,
        "protocol": str(header.protocol),
        "lossless": header.lossless,
        "record": str(header.level),
    }
    return {
        "request": (header.request, request.request_id),
        "end": (header.finish_reason, request.finish_reason),
        **{name: (value, stated.get(name)) for name, value in said.items() if name in stated or "backend" in stated},
    }


def _of_arms(evidence: Evidence) -> Iterator[Finding]:
    """Keys of which another arm's statement says something else."""
    own, redraft = evidence.candidate.effective.to_json(), evidence.companions.get(ArmKind.REDRAFT)
    others = (
        {}
        if redraft is None
        else {key: value for key, value in redraft.effective.to_json().items() if key not in OF_PASSES}
    )
    if evidence.baseline is not None and not evidence.baseline.taken_over:
        stated = evidence.baseline.effective.to_json()
        others |= {key: stated[key] for key in OF_TARGET if key in stated}
    if MIXED in own:
        sampling = evidence.candidate.requests[0].trace.header.sampling
        others |= Mixed(2, contrasting(sampling)).facts()
    # an arm that states nothing contradicts nothing
    for key, value in others.items() if own else ():
        if _stored(own.get(key)) != _stored(value):
            yield Finding(WHOLE_ARM, 0, f"it states {key} {own.get(key)!r:.80}, another of its arms {value!r:.80}")


def _stored(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class _Batches:
    """The requests that were active in each round of each call, from the rounds of all requests."""

    def __init__(self, arm: ArmRecord) -> None:
        self._rows = arm.effective.rows
        self._neighbours = arm.effective.mixed is not None or arm.effective.beside is not None
        self._whole = not arm.failed
        self._active: dict[str, Counter[int]] = defaultdict(Counter)
        self._taken: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        for request in arm.requests:
            facts = request.trace.header.facts
            if facts.keys() >= PLACE:
                rounds = range(facts["round"], facts["round"] + request.trace.steps)
                self._active[facts["call"]].update(rounds)
                self._taken[facts["call"], facts["row"]].update(rounds)

    def findings(self, request: RequestRecord) -> Iterator[Finding]:
        """The steps whose batch is not the number of requests in that round, neighbours beside them apart."""
        trace, facts = request.trace, request.trace.header.facts
        if not facts.keys() >= PLACE:
            return
        for step, size in enumerate(trace.batch.tolist()):
            number = facts["round"] + step
            least = self._active[facts["call"]][number]
            exact = self._whole and not self._neighbours
            if self._taken[facts["call"], facts["row"]][number] > 1:
                yield Finding(request.request_id, step, f"another request is in its row {facts['row']} in that round")
            if not (least <= size <= (self._rows or size)) or (exact and size != least):
                yield Finding(
                    request.request_id, step, f"{size} requests are said to be in the batch, {least} have that round"
                )
