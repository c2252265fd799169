"""Users' settings of SLURM jobs: options of sbatch by their own names, and the folder of the jobs' files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from audit.errors import UserError
from audit.text.unsafe import quoted

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
