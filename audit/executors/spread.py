"""Fills a run with the requests that it lacks, by workers; the run then goes on as one of a single process.

A worker's answer counts once it is here whole: every request of its part, as it was asked. A worker that dies takes its
part with it; the part goes to another worker, `TRIES` times at most. Then the run stops, keeps what it has, and can be
resumed with or without workers. The coordinating process alone writes to the store, whose key of a request is unique,
so nothing is stored twice.

Cuts what a run lacks into parts for workers, in two waves: arms that decode, then arms that read their tokens.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from audit.errors import CannotDecide
from audit.executors.job import ArmPiece, Executor, Job, PartDone, PartFailed, PartLost, WorkerPool, WorkPart
from audit.executors.shares import divisible
from audit.runs.continuity import Remaining, remaining
from audit.runs.interruptions import resume_command
from audit.runs.prepare import PreparedArm, PreparedRun
from audit.runs.runner import Progress
from audit.store import NewRequest, RequestKey, RunStatus, Store
from engine.core.errors import EngineError
from engine.core.sequences import grouped

CUTS: Final = 2
"""Pieces of an arm per worker: more would balance better, and decode more often in batches that are not full."""
FILLED: Final = 4
"""Times that a piece should fill its rows, at least."""
READ: Final = 32
"""Requests that one piece of a reading arm follows; their records travel with it."""


def decoding_pieces(prepared: PreparedRun, store: Store, run: str, workers: int) -> list[ArmPiece]:
    """The pieces of the arms that decode, the largest first."""
    finished, load = store.finished(run), partial(store.load_arm, run)
    pieces: list[ArmPiece] = []
    for arm in prepared.arms:
        if arm.planned.kind.reads:
            continue
        wanted = {request.id for request in remaining(arm, finished, load).requests}
        keys = [key for key, request in arm.requests.items() if request.id in wanted]
        size = _size(arm, len(keys), workers) if divisible(prepared, arm) else len(keys)
        pieces += [ArmPiece(arm.planned.name, key) for key in _cut(keys, size)]
    lengths = {arm.planned.name: arm.planned.sampling.max_new_tokens for arm in prepared.arms}
    return sorted(pieces, key=lambda piece: -len(piece.keys) * lengths[piece.arm])


def reading_pieces(prepared: PreparedRun, store: Store, run: str) -> Iterator[ArmPiece]:
    """The pieces of the arms that read, with the records that they follow, which are loaded piece by piece."""
    finished = store.finished(run)
    for arm in prepared.arms:
        if arm.planned.along is None:
            continue
        missing = {(key.case_id, key.sample): key for key in arm.requests if key not in finished}
        recorded = sum(key.arm == arm.planned.along for key in finished)
        for start in range(0, recorded if missing else 0, READ):
            emitted = store.copies(run, arm.planned.along, range(start, start + READ))
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
        min(shares, key=lambda share: sum(len(item.keys) for item in share)).append(piece)
    yield from (WorkPart(number, tuple(share)) for number, share in enumerate(shares) if share)


def _size(arm: PreparedArm, requests: int, workers: int) -> int:
    rows = arm.planned.plan.rows
    return max(1, FILLED * rows if rows > 1 else 1, -(-requests // (CUTS * workers)))


def _cut(keys: Sequence[RequestKey], size: int) -> Iterator[tuple[RequestKey, ...]]:
    return (tuple(keys[start : start + size]) for start in range(0, len(keys), max(1, size)))


TRIES: Final = 4
"""Workers that a part may lose."""
PIECE: Final = 64
"""Requests that are stored in one transaction."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A prepared run and the workers that decode it."""

    prepared: PreparedRun
    job: Job
    executor: Executor
    workers: int

    def fill(self, store: Store, run: str, progress: Progress) -> None:
        """Decode what the run lacks.

        Raises:
            EngineError: an engine cannot continue, or a part lost too many workers.
            UserError: workers cannot be started.
        """
        jobs = self.workers if self.executor.whole_jobs else None
        with self.executor.pool(self.job, self.workers) as pool:
            waves = (
                lambda: decoding_pieces(self.prepared, store, run, self.workers),
                lambda: reading_pieces(self.prepared, store, run),
            )
            for wave in waves:
                for done in _outcomes(pool, parts_of(wave(), jobs), resume_command(run, store.url)):
                    self._keep(done, store, run, progress)

    def _keep(self, done: PartDone, store: Store, run: str, progress: Progress) -> None:
        """Store what a part brought."""
        _require_whole_part(self.prepared, done)
        finished = store.finished(run)
        for name, requests in grouped((new.arm, new) for new in done.requests).items():
            arm = next(other for other in self.prepared.arms if other.planned.name == name)
            rest = remaining(arm, finished, partial(store.load_arm, run))
            made = list(_not_stored(requests, rest, finished))
            progress.arm(name, len(arm.requests), sum(key in finished for key in arm.requests))
            for start in range(0, len(made), PIECE):
                store.add_requests(run, made[start : start + PIECE])
            for new in made:
                progress.advance(len(new.generation.tokens))
        for line in done.memories:
            store.set_status(run, RunStatus.RUNNING, line)


def _outcomes(pool: WorkerPool, parts: Iterable[WorkPart], resume: str) -> Iterator[PartDone]:
    """The answers to all parts, in the order of their arrival."""
    waiting, again = iter(parts), list[WorkPart]()
    lost: Counter[int] = Counter()
    running = 0
    while True:
        while pool.room() and (part := again.pop() if again else next(waiting, None)) is not None:
            pool.submit(part)
            running += 1
        if not running:
            return
        outcome = pool.wait()
        running -= 1
        match outcome:
            case PartDone():
                yield outcome
            case PartFailed(message=message):
                raise EngineError(message)
            case PartLost(part=part, reason=reason):
                lost[part.number] += 1
                if lost[part.number] >= TRIES:
                    raise EngineError(
                        f"{part.name}: {TRIES} workers died over it, the last one {reason}; give workers more memory "
                        f"or time, then: {resume}"
                    )
                again.append(part)


def _require_whole_part(prepared: PreparedRun, done: PartDone) -> None:
    """Require every request of the part once, as it was asked; raises CannotDecide: the answer is another one."""
    asked = [(key.arm, key.case_id, key.sample) for piece in done.part.pieces for key in piece.keys]
    result = [(new.arm, new.case_id, new.sample) for new in done.requests]
    if not _fits(prepared, asked, result):
        raise CannotDecide(f"a worker answered other requests than {done.part.name}; nothing of its answer was stored")
    arms = {arm.planned.name: arm for arm in prepared.arms}
    for new in done.requests:
        key = RequestKey(new.arm, new.case_id, new.sample)
        if new.generation.request != arms[new.arm].requests[key] or new.domain != arms[new.arm].domain(new.case_id):
            raise CannotDecide(f"a worker answered another request than {key.name}; nothing of its answer was stored")


def _fits(prepared: PreparedRun, asked: Iterable[tuple[str, str, int]], result: list[tuple[str, str, int]]) -> bool:
    """True if the answers are those asked for, each once; an arm that reads may leave out what no pass can follow."""
    optional = {arm.planned.name for arm in prepared.arms if arm.planned.kind.reads}
    wanted, given = set(asked), set(result)
    return len(given) == len(result) and given <= wanted and all(arm in optional for arm, *_ in wanted - given)


def _not_stored(
    requests: Iterable[NewRequest], rest: Remaining, finished: frozenset[RequestKey]
) -> Iterator[NewRequest]:
    """The requests that the store lacks; one that it has must have come out as stored."""
    for new in requests:
        if RequestKey(new.arm, new.case_id, new.sample) in finished:
            rest.require_same(new.generation)
        else:
            yield new
