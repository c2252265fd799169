"""Cuts what a run lacks into parts for workers, in two waves: arms that decode, then arms that read their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Final

from audit.executors.job import ArmPiece, WorkPart
from audit.executors.shares import divisible
from audit.runs.continuity import remaining
from audit.runs.prepare import PreparedArm, PreparedRun
from audit.store import RequestKey, Store

CUTS: Final = 2
"""Pieces of an arm per worker: more would balance better, and decode more often in batches that are not full."""
FILLED: Final = 4
"""Times that a piece should fill its rows, at least."""
READ: Final = 32
"""Requests that one piece of a reading arm follows; their records travel with it."""


def decoding_pieces(prepared: PreparedRun, store: Store, run: str, workers: int) -> list[ArmPiece]:
    """The pieces of the arms that decode, the largest first."""
    finished, load = store.finished(run), partial(store.load_arm, run)
    found: list[ArmPiece] = []
    for arm in prepared.arms:
        if arm.planned.kind.reads:
            continue
        wanted = {request.id for request in remaining(arm, finished, load).requests}
        keys = [key for key, request in arm.requests.items() if request.id in wanted]
        size = _size(arm, len(keys), workers) if divisible(prepared, arm) else len(keys)
        found += [ArmPiece(arm.planned.name, each) for each in _cut(keys, size)]
    lengths = {arm.planned.name: arm.planned.sampling.max_new_tokens for arm in prepared.arms}
    return sorted(found, key=lambda piece: -len(piece.keys) * lengths[piece.arm])


def reading_pieces(prepared: PreparedRun, store: Store, run: str) -> Iterator[ArmPiece]:
    """The pieces of the arms that read, with the records of their candidates, which are loaded piece by piece."""
    finished = store.finished(run)
    for arm in prepared.arms:
        if not arm.planned.kind.reads or arm.planned.of is None:
            continue
        missing = {(key.case_id, key.sample): key for key in arm.requests if key not in finished}
        candidates = sum(key.arm == arm.planned.of for key in finished)
        for start in range(0, candidates if missing else 0, READ):
            emitted = store.copies(run, arm.planned.of, range(start, start + READ))
            followed = [new for new in emitted if (new.case_id, new.sample) in missing]
            if followed:
                keys = tuple(missing[new.case_id, new.sample] for new in followed)
                yield ArmPiece(arm.planned.name, keys, tuple(followed))


def parts_of(pieces: Iterable[ArmPiece], jobs: int | None) -> Iterator[WorkPart]:
    """A part for each piece; or `jobs` parts, each piece in the one with the fewest requests so far."""
    if jobs is None:
        yield from (WorkPart(number, (piece,)) for number, piece in zip(count(), pieces, strict=False))
        return
    shares: list[list[ArmPiece]] = [[] for _ in range(jobs)]
    for piece in pieces:
        min(shares, key=lambda share: sum(len(each.keys) for each in share)).append(piece)
    yield from (WorkPart(number, tuple(share)) for number, share in enumerate(shares) if share)


def _size(arm: PreparedArm, requests: int, workers: int) -> int:
    """Requests of a piece."""
    rows = arm.planned.plan.rows
    return max(1, FILLED * rows if rows > 1 else 1, -(-requests // (CUTS * workers)))


def _cut(keys: Sequence[RequestKey], size: int) -> Iterator[tuple[RequestKey, ...]]:
    return (tuple(keys[start : start + size]) for start in range(0, len(keys), max(1, size)))
