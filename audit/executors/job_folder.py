"""A folder for the pickles and logs of jobs, writable by its owner only, because unpickling executes code.

Owners of folders above it can still exchange it, and are trusted.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from audit.errors import UserError

PREFIX: Final = "specaudit-slurm-"
LOGS: Final = "*_log.*"
"""Files kept of a failed run."""
ELSEWHERE: Final = "--slurm folder=PATH on a file system that the nodes share"


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
        _keep_logs(made)
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


def _keep_logs(folder: Path) -> None:
    logs = {path for path in folder.glob(LOGS) if path.stat().st_size}
    for path in folder.iterdir():
        if path not in logs:
            path.unlink(missing_ok=True)
    if not logs:
        shutil.rmtree(folder, ignore_errors=True)
