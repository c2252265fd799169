"""Users' options of SLURM jobs by sbatch's own names, the folder of the jobs' files, and the states of jobs.

The folder of pickles and logs is writable by its owner only, because unpickling executes code. Owners of folders above
it can still exchange it, and are trusted. The states come from squeue: it needs no accounting database, which sacct
does, and knows ended jobs for minutes. A job that squeue no longer lists has ended, in an unknown state.
"""

import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from audit.errors import UserError
from audit.text.unsafe import quoted
from engine.core.errors import EngineError

COMMANDS: Final = ("sbatch", "squeue", "scancel")
ENDED: Final = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States that a job does not leave; SLURM has more of the others in every version."""
UNSAID: Final = "no reason given"
PATIENCE_S: Final = 120.0
"""Seconds for an answer of SLURM's controller."""
FOLDER: Final = "folder"
PLAIN: Final = "exclusive"
"""The option that may stand without a value."""
SBATCH: Final = frozenset(
    {
        *("account", "begin", "comment", "constraint", "cpus-per-task", "exclude", PLAIN, "gpus-per-node", "gres"),
        *("job-name", "licenses", "mail-type", "mail-user", "mem", "mem-per-cpu", "nice", "nodelist", "partition"),
        *("prefer", "qos", "reservation", "time", "tmp", "wckey"),
    }
)
"""Long options of sbatch that leave a job one task on one node, with the output where the command looks for it."""
PREFIX: Final = "specaudit-slurm-"
LOGS: Final = "*_log.*"
"""Files kept of a failed run."""
ELSEWHERE: Final = "--slurm folder=PATH on a file system that the nodes share"


def require_commands() -> None:
    """Require the commands of SLURM. Raises UserError: one is missing."""
    for name in COMMANDS:
        if shutil.which(name) is None:
            raise UserError(
                f"{name} is not there; run the command on a machine that submits jobs to SLURM, or use --executor local"
            )


class NoAnswer(Exception):
    """SLURM's controller did not answer. The jobs go on without it."""


class SlurmQueue:
    """SLURM's controller."""

    def states(self, jobs: Collection[str]) -> Mapping[str, str]:
        """States by job, of the jobs that SLURM still knows. Raises NoAnswer: the controller cannot be reached."""
        done = _done(["squeue", "--noheader", "--states=all", "--format=%i %T", f"--jobs={','.join(jobs)}"])
        if done.returncode == 0:
            return dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip())
        if "Invalid job id" in done.stderr:
            # an answer about one job; about several, squeue leaves unknown ones out
            return {}
        raise NoAnswer(last_line(done.stderr) or UNSAID)

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs; those that have ended are left out. Raises EngineError: SLURM did not accept it."""
        try:
            done = _done(["scancel", *jobs])
            reason = "" if done.returncode == 0 else last_line(done.stderr) or UNSAID
        except NoAnswer as silent:
            reason = str(silent)
        if reason:
            raise EngineError(f"scancel failed ({reason}); end the jobs of the run: scancel {' '.join(jobs)}")


def _done(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} took more than {PATIENCE_S:.0f} s") from None


def last_line(text: str) -> str:
    """The last line that is not blank; empty without one."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Options of sbatch by name (True for one without a value), and where the folder of a run's jobs is made."""

    sbatch: Mapping[str, str | bool] = field(default_factory=dict)
    folder: Path = Path()


def slurm_options(given: Sequence[str]) -> SlurmOptions:
    """The options that texts KEY=VALUE give; a later one replaces an earlier one.

    Raises:
        UserError: an unknown name, a missing value, or a value that a line of a batch script cannot have.
    """
    sbatch: dict[str, str | bool] = {}
    folder = Path()
    for text in given:
        name, equals, value = text.partition("=")
        key = name.strip().removeprefix("--").replace("_", "-")
        if key != FOLDER and key not in SBATCH:
            near = get_close_matches(key, [FOLDER, *sorted(SBATCH)], 1)
            fix = f"did you mean {near[0]}?" if near else f"known are {FOLDER}, {', '.join(sorted(SBATCH))}"
            raise UserError(f"--slurm {quoted(text)}: {quoted(name)} is not an option of these jobs; {fix}")
        if not value.strip() and (equals or key != PLAIN):
            raise UserError(f"--slurm {quoted(text)}: the value is missing; write {key}=VALUE")
        if not value.isprintable():
            raise UserError(f"--slurm {quoted(text)}: the value has a character that is not printable; leave it out")
        if key == FOLDER:
            folder = Path(value).expanduser()
        else:
            sbatch[key] = value or True
    return SlurmOptions(sbatch, folder)


@contextmanager
def job_folder(parent: Path) -> Iterator[Path]:
    """A new folder of mode 0700; it is removed in the end, but after an error its logs stay.

    Raises:
        UserError: others could exchange the folder, or it cannot be made.
    """
    require_own(parent)
    try:
        made = Path(mkdtemp(prefix=PREFIX, dir=parent.resolve()))
    except OSError as error:
        raise UserError(f"{parent}: no folder for jobs can be made: {error.strerror}; choose {ELSEWHERE}") from error
    try:
        yield made
    except Exception:
        logs = {path for path in made.glob(LOGS) if path.stat().st_size}
        for path in made.iterdir():
            if path not in logs:
                path.unlink(missing_ok=True)
        if not logs:
            shutil.rmtree(made, ignore_errors=True)
        raise
    except BaseException:
        # the user's stop
        shutil.rmtree(made, ignore_errors=True)
        raise
    shutil.rmtree(made, ignore_errors=True)


def require_own(parent: Path) -> None:
    """Require that no other user can write to a folder, and none to one above it; `/tmp` protects what is in it.

    Raises:
        UserError: somebody else can.
    """
    place = parent.resolve()
    if not place.is_dir():
        raise UserError(f"{parent} is not a folder; make it, or choose {ELSEWHERE}")
    if place.stat().st_uid not in (0, os.geteuid()):
        raise UserError(f"{place} belongs to another user, who could exchange what jobs answer; choose {ELSEWHERE}")
    for other in (place, *place.parents):
        mode = other.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            raise UserError(
                f"other users can write to {other}, so they could exchange what jobs answer; "
                f"chmod go-w {shlex.quote(str(other))}, or choose {ELSEWHERE}"
            )
