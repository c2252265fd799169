"""A worker: prepares the suite once, then decodes parts of its run. It has no store and judges nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from audit.errors import CannotDecide, UserError
from audit.evidence.environment import use_threads
from audit.evidence.records import ArmRecord
from audit.executors.job import ArmPiece, Job, PartDone, PartFailed, WorkPart, identity_of
from audit.runs.generate import generations
from audit.runs.in_memory import arm_record
from audit.runs.prepare import PreparedArm, prepare
from audit.runs.runner import memory_line
from audit.store import NewRequest
from audit.suite.loader import load_suite
from engine.core.errors import EngineError

SHOWN = 3
"""Differences named in a message."""


@dataclass(frozen=True, slots=True)
class SuiteWorker:
    """The arms of a suite in this process, with their engines."""

    arms: Mapping[str, PreparedArm]

    def run(self, part: WorkPart) -> PartDone | PartFailed:
        """Decode the pieces of a part in order."""
        done: list[NewRequest] = []
        memories: list[str] = []
        try:
            for piece in part.pieces:
                done += self._decoded(piece, memories)
        except (EngineError, UserError, CannotDecide) as error:
            return PartFailed(part, str(error))
        return PartDone(part, tuple(done), tuple(memories))

    def _decoded(self, piece: ArmPiece, memories: list[str]) -> list[NewRequest]:
        arm = self.arms[piece.arm]
        keys = {arm.requests[key].id: key for key in piece.keys}
        arm.engine.forget()
        before = arm.engine.memory()
        made = generations(arm, [arm.requests[key] for key in piece.keys], lambda name: self._read(name, piece.read))
        result = [(keys[item.request.id], item) for item in made]
        if before is not None:
            memories.append(memory_line(arm, before))
        return [NewRequest(key.arm, arm.domain(key.case_id), key.case_id, key.sample, item) for key, item in result]

    def _read(self, name: str, emitted: Sequence[NewRequest]) -> ArmRecord:
        return arm_record(self.arms[name], [new.generation for new in emitted])


def prepared_worker(job: Job) -> SuiteWorker:
    """A worker for a job.

    Raises:
        UserError: the suite cannot be prepared here, or something differs from the coordinator's.
        CannotDecide: the suite requires a numerics mode that does not hold on this machine.
    """
    use_threads(job.threads)
    prepared = prepare(load_suite(str(job.suite)), None, job.allowed)
    changes = list(job.identity.differences(identity_of(prepared)))
    if changes:
        more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        raise UserError(
            f"a worker would decode in another environment: {'; '.join(changes[:SHOWN])}{more}; "
            "start workers with the same files, packages and kind of machine as the coordinator"
        )
    return SuiteWorker({arm.planned.name: arm for arm in prepared.arms})


class PartRunner:
    """The worker of a process: the first part waits for the models, and a failure to prepare them is its outcome."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._worker: SuiteWorker | None = None

    def run(self, part: WorkPart) -> PartDone | PartFailed:
        """The outcome of a part."""
        try:
            self._worker = self._worker or prepared_worker(self._job)
        except (EngineError, UserError, CannotDecide) as error:
            return PartFailed(part, str(error))
        return self._worker.run(part)
