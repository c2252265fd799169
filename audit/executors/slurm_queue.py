"""The states of jobs, from squeue: it needs no accounting database, which sacct does, and knows ended jobs for minutes.

A job that squeue no longer lists has ended, in an unknown state.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Mapping
from typing import Final

from audit.errors import UserError
from engine.core.errors import EngineError

COMMANDS: Final = ("sbatch", "squeue", "scancel")
ENDED: Final = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States that a job does not leave; SLURM has more of the others in every version."""
PATIENCE_S: Final = 120.0
"""Seconds for an answer of SLURM's controller."""


def require_commands() -> None:
    """Require the commands of SLURM.

    Raises:
        UserError: one is missing.
    """
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
        """States by job, of the jobs that SLURM still knows.

        Raises:
            NoAnswer: the controller cannot be reached.
        """
        command = ["squeue", "--noheader", "--states=all", "--format=%i %T", f"--jobs={','.join(jobs)}"]
        done = _done(command)
        if done.returncode == 0:
            return dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip())
        if "Invalid job id" in done.stderr:
            # an answer about one job; about several, squeue leaves unknown ones out
            return {}
        raise NoAnswer(_last_line(done.stderr))

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs; those that have ended are left out.

        Raises:
            EngineError: SLURM did not accept it.
        """
        try:
            done = _done(["scancel", *jobs])
            reason = "" if done.returncode == 0 else _last_line(done.stderr)
        except NoAnswer as silent:
            reason = str(silent)
        if reason:
            raise EngineError(f"scancel failed ({reason}); end the jobs of the run: scancel {' '.join(jobs)}")


def _done(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} took more than {PATIENCE_S:.0f} s") from None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")
