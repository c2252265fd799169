"""Statements beside their second accounts: the loop's own words about itself, which no number of a record shows.

The header of a request is compared with the arm's statement and with the same request of the baseline, the arm's
statement with those of its baseline and of its drafts made again, sizes of batches with the rounds of all requests.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.evidence.coverage.batch import Stay, stay_of
from audit.evidence.records import ArmKind, ArmRecord, Evidence, RequestRecord
from audit.evidence.verdicts import WHOLE_ARM, Finding
from engine.backends.neighbour import Mixed, contrasting
from engine.record.effective import MIXED
from engine.record.trace import TraceHeader

OF_TARGET: Final = ("backend", "target", "context", "numerics", "rows", "stream", "torch_threads")
"""Keys of a statement that a baseline shares with its candidates."""
OF_PASSES: Final = frozenset(("rows", "record", "fault", "pass", "copies", "repeats", "measured"))
"""Keys in which a pass along a record differs from the arm that it follows."""
OFFERED: Final = ("offered", "choice", "template", "parser")
OF_ARMS: Final = ("coupled_draft", "kept_share")
"""Fields of a header that all requests of an arm share."""
OF_REQUESTS: Final = ("prompt", "sampling", "eos_ids", "vocabulary", "stream")
"""Fields of a header that a request has in every arm."""


def statement_findings(evidence: Evidence) -> Iterator[Finding]:
    """Contradictions of the headers and the statement of an arm of our own loop."""
    arm = evidence.candidate
    theirs = {} if evidence.baseline is None else {one.key: one.trace.header for one in evidence.baseline.requests}
    stated = arm.effective.to_json()
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
    yield from _of_arms(evidence, stated)


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


def _of_arms(evidence: Evidence, own: Mapping[str, Any]) -> Iterator[Finding]:
    """Keys of the arm's `own` statement of which another arm's says something else."""
    redraft = evidence.companions.get(ArmKind.REDRAFT)
    others = (
        {}
        if redraft is None
        else {key: value for key, value in redraft.effective.to_json().items() if key not in OF_PASSES}
    )
    if evidence.baseline is not None and not evidence.baseline.taken_over:
        theirs = evidence.baseline.effective.to_json()
        others |= {key: theirs[key] for key in OF_TARGET if key in theirs}
    if MIXED in own:
        sampling = evidence.candidate.requests[0].trace.header.sampling
        others |= Mixed(2, contrasting(sampling)).facts()
    # an arm that states nothing contradicts nothing
    for key, value in others.items() if own else ():
        if _stored(own.get(key)) != _stored(value):
            yield Finding(WHOLE_ARM, 0, f"it states {key} {own.get(key)!r:.80}, another of its arms {value!r:.80}")


def _stored(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """A request's stay in its batch, and the size of the batch that each of its steps [S] says."""

    stay: Stay
    sizes: tuple[int, ...]


def recorded_batch(request: RequestRecord) -> RecordedBatch | None:
    """The batch of a well-formed record; None if it names no row of its own."""
    stay = stay_of(request)
    return None if stay is None or stay.row is None else RecordedBatch(stay, tuple(request.trace.batch.tolist()))


def batch_findings(arm: ArmRecord, batches: Sequence[RecordedBatch]) -> Iterator[Finding]:
    """Steps whose batch is not the requests of that round, neighbours apart, and rows with two requests at once."""
    exact = len(batches) == len(arm.requests) and not arm.failed
    exact &= arm.effective.mixed is None and arm.effective.beside is None
    active, taken = Counter[tuple[str, int]](), Counter[tuple[str, int | None, int]]()
    for one in batches:
        active.update((one.stay.call, number) for number in one.stay.rounds.tolist())
        taken.update((one.stay.call, one.stay.row, number) for number in one.stay.rounds.tolist())
    for one in batches:
        stay = one.stay
        for step, (number, size) in enumerate(zip(stay.rounds.tolist(), one.sizes, strict=True)):
            least = active[stay.call, number]
            if taken[stay.call, stay.row, number] > 1:
                yield Finding(stay.key, step, f"another request is in its row {stay.row} in that round")
            if not (least <= size <= (arm.effective.rows or size)) or (exact and size != least):
                yield Finding(stay.key, step, f"{size} requests are said to be in the batch, {least} have that round")
