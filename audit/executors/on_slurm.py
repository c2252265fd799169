"""Workers as jobs of SLURM, which submitit submits: a job loads the models, decodes one part and writes its answer.

Every node needs this package, the suite, the models and the folder of the jobs under the same paths. The coordinator
repeats lost parts, so neither submitit nor SLURM repeats jobs.
"""

import io
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.errors import needs
from audit.executors.job import Job, PartDone, PartFailed, PartLost, PartOutcome, WorkPart
from audit.executors.slurm_jobs import (
    ENDED,
    NoAnswer,
    SlurmOptions,
    SlurmQueue,
    job_folder,
    last_line,
    require_commands,
)
from audit.executors.worker import PartRunner
from engine.core.errors import EngineError

NAME: Final = "specaudit"
"""The name of jobs, unless the user gives one."""
MOST_GB: Final = 64.0
"""Size of a part up to which submitit submits it; a part that reads brings records."""
PRIVATE: Final = 0o700
TRACE: Final = "-" * 22
"""Submitit's frame around the trace of a job."""
SHOWN: Final = 200
"""Characters of an error that a message has."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds that a pool waits.

    `look`: between two looks for answers. `ask`: between two questions for states. `way`: for the answer of an ended
    job over a shared file system. `ending`: for the ends of cancelled jobs. `silence`: for a controller that is silent.
    """

    look: float = 1.0
    ask: float = 10.0
    way: float = 15.0
    ending: float = 60.0
    silence: float = 1800.0


@dataclass(slots=True)
class SubmittedJob:
    """submitit's handle of a job, its part, and since when it has ended without an answer."""

    handle: Any
    part: WorkPart
    state: str = ""
    ended_s: float | None = None


class SlurmPool:
    """Jobs in flight, one for each part."""

    def __init__(self, submitter: Any, queue: SlurmQueue, job: Job, workers: int, pauses: Pauses) -> None:
        self._submitter = submitter
        self._queue = queue
        self._job = job
        self._most = workers
        self._pauses = pauses
        self._jobs: dict[str, SubmittedJob] = {}
        self._asked_s = self._answered_s = time.monotonic()

    @property
    def jobs(self) -> tuple[str, ...]:
        """Numbers of the jobs in flight."""
        return tuple(self._jobs)

    def room(self) -> bool:
        """True if another job may be submitted."""
        return len(self._jobs) < self._most

    def submit(self, part: WorkPart) -> None:
        """Submit a job for a part. Raises EngineError: SLURM refuses it."""
        shown = io.StringIO()
        try:
            # submitit repeats on stderr what its error says
            with redirect_stderr(shown):
                handle = self._submitter.submit(run_part, self._job, part)
        except (RuntimeError, OSError) as error:
            reason = last_line(str(error))[:SHOWN] or type(error).__name__
            raise EngineError(f"sbatch refused the job: {reason}; correct --slurm, then: audit resume") from error
        if not self._jobs:
            self._answered_s = time.monotonic()
        self._jobs[str(handle.job_id)] = SubmittedJob(handle, part)

    def wait(self) -> PartOutcome:
        """The next answer, or the loss of a part with its job.

        Raises:
            EngineError: SLURM's controller has been silent for long.
        """
        while True:
            for name, item in self._jobs.items():
                # a client of NFS looks anew after a change of the folder
                with suppress(OSError):
                    item.handle.paths.folder.chmod(PRIVATE)
                if item.handle.paths.result_pickle.exists():
                    del self._jobs[name]
                    return answer(item)
            now = time.monotonic()
            if now - self._asked_s >= self._pauses.ask:
                self._asked_s = now
                self._ask(now)
            for name, item in self._jobs.items():
                if item.ended_s is not None and now - item.ended_s >= self._pauses.way:
                    del self._jobs[name]
                    return PartLost(item.part, f"with {item.state}{_log(item.handle)}")
            time.sleep(self._pauses.look)

    def close(self) -> None:
        """Cancel all jobs, and wait some time for their ends. Raises EngineError: SLURM did not accept it."""
        if not self._jobs:
            return
        self._queue.cancel(self.jobs)
        end = time.monotonic() + self._pauses.ending
        with suppress(NoAnswer):
            while time.monotonic() < end:
                states = self._queue.states(self.jobs)
                if all(states.get(name) in {None, *ENDED} for name in self._jobs):
                    break
                time.sleep(self._pauses.look)
        self._jobs.clear()

    def _ask(self, now: float) -> None:
        """Note which jobs have ended."""
        try:
            states = self._queue.states(self.jobs)
        except NoAnswer as silent:
            if now - self._answered_s >= self._pauses.silence:
                raise EngineError(
                    f"SLURM has not answered for {self._pauses.silence / 60:.0f} minutes, last: {silent}; "
                    "when it does, go on with audit resume"
                ) from silent
            return
        self._answered_s = now
        for name, item in self._jobs.items():
            state = states.get(name)
            if state is not None and state not in ENDED:
                item.ended_s = None
            elif item.ended_s is None:
                item.ended_s, item.state = now, f"state {state}" if state else "an end that SLURM no longer knows"


class SlurmExecutor:
    """Jobs of SLURM."""

    whole_jobs = True

    def __init__(self, options: SlurmOptions | None = None) -> None:
        with needs("slurm"):
            import submitit
        self._submitit: Any = submitit
        self._options = options or SlurmOptions()
        self.pauses = Pauses()
        self.require()

    def require(self) -> None:
        """Require that jobs can be submitted here. Raises UserError: they cannot."""
        require_commands()

    @contextmanager
    def pool(self, job: Job, workers: int) -> Iterator[SlurmPool]:
        """Jobs in flight, which end with the context.

        Raises:
            UserError: the folder of jobs cannot be made, or others could exchange it.
        """
        with job_folder(self._options.folder) as folder:
            submitter = self.submitter(folder, job.threads)
            with closing(SlurmPool(submitter, self.queue(), job, workers, self.pauses)) as pool:
                yield pool

    def queue(self) -> SlurmQueue:
        """The queue of these jobs."""
        return SlurmQueue()

    def submitter(self, folder: Path, threads: int) -> Any:
        """The executor of submitit for jobs of one task on one node."""
        made = self._submitit.SlurmExecutor(folder, max_num_timeout=0, max_pickle_size_gb=MOST_GB)
        given = {"job-name": NAME, "cpus-per-task": threads, "ntasks": 1, "no-requeue": True, **self._options.sbatch}
        made.update_parameters(
            additional_parameters=given,
            # what submitit would add: the cluster's defaults hold, unless the user gives others
            job_name=None,
            time=None,
            wckey=None,
            # a step of the job would get one processor, whatever the job has
            use_srun=False,
            # the command may be in a job of an array itself, and jobs inherit its variables
            setup=["unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID"],
        )
        return made


def run_part(job: Job, part: WorkPart) -> PartDone | PartFailed:
    """The outcome of a part, in a job."""
    # submitit has set handlers that queue the job again, and keep it alive when SLURM asks it to end
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    for item in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(item, signal.SIG_DFL)
    return PartRunner(job).run(part)


def answer(ended: SubmittedJob) -> PartOutcome:
    """The outcome in an ended job's file."""
    try:
        outcome = ended.handle.result()
    # a file that was cut off, or is of another version, can make a load raise anything
    except Exception as error:
        return PartLost(ended.part, f"with {_reason(error)}{_log(ended.handle)}")
    if isinstance(outcome, PartDone | PartFailed):
        return outcome
    return PartLost(ended.part, f"with a result that is a {type(outcome).__name__}{_log(ended.handle)}")


def _reason(error: Exception) -> str:
    """The last line of the trace that submitit's error quotes, or the kind of another error."""
    quoted = str(error).split(TRACE)
    return last_line(quoted[1])[:SHOWN] if len(quoted) > 1 else f"an unreadable result ({type(error).__name__})"


def _log(handle: Any) -> str:
    """Where the job's errors are, if it wrote any."""
    path = handle.paths.stderr
    return f" (see {path})" if path.exists() and path.stat().st_size else ""
