"""The table of a run in progress on a terminal: one row per arm, and the time that is left.

It draws only the rows that fit, those around the arm that runs. Names go through `visible`, and rich reads no markup in
them.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from audit.evidence.verdicts import Verdict
from audit.runs.runner import Progress
from audit.terminal.tables import COLOURS
from audit.text.durations import duration
from audit.text.unsafe import visible

BAR: Final = 10
WIDE: Final = 100
"""Columns of a terminal that has room for bars."""
LONGEST_NAME: Final = 26
NUMBERS: Final = 34
"""Columns of the screen that requests, tokens/s and left may fill, with the gaps."""
LEAST: Final = 12
WORST_FIRST: Final = (Verdict.FAULT, Verdict.INCONCLUSIVE, Verdict.CERTIFIED, Verdict.NOT_RUN)
BESIDES: Final = 4
"""Lines of the screen that are no rows: heading, dots, last line, cursor."""
PER_SECOND: Final = 4


@dataclass(slots=True)
class ArmProgress:
    """The counts of one arm.

    stored: requests that were there when it began, which say nothing about its speed.
    since: when its requests went on; None while they do not run.
    """

    total: int = 0
    stored: int = 0
    done: int = 0
    tokens: int = 0
    seconds: float = 0.0
    since: float | None = None
    verdicts: Counter[Verdict] = field(default_factory=Counter)

    @property
    def left(self) -> int:
        """Requests to run."""
        return self.total - self.stored - self.done

    def spent(self, now: float) -> float:
        """Seconds in which its requests ran."""
        return self.seconds + (now - self.since if self.since is not None else 0.0)


class LiveTable(Progress):
    """Receives the progress of a run and draws it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._arms: dict[str, ArmProgress] = {}
        self._current: str | None = None
        self._checking = False
        self._began = time.monotonic()

    def planned(self, totals: Mapping[str, int]) -> None:
        """Add a row for each arm."""
        self._arms |= {name: ArmProgress(total) for name, total in totals.items()}

    def arm(self, name: str, total: int, done: int) -> None:
        """Begin an arm, or go on with it in another round."""
        self._turn(name, checking=False)
        arm = self._arms[name]
        if arm.done or arm.verdicts:
            arm.total = arm.stored + arm.done + total - done
        else:
            arm.total, arm.stored = total, done
        arm.since = time.monotonic()

    def advance(self, tokens: int) -> None:
        """Count one request of the current arm."""
        if self._current is not None:
            arm = self._arms[self._current]
            arm.done += 1
            arm.tokens += tokens

    def judging(self, arm: str) -> None:
        """Begin the checks of an arm; those of an earlier round no longer count."""
        self._turn(arm, checking=True)
        self._arms[arm].verdicts.clear()

    def judged(self, arm: str, check: str, verdict: Verdict) -> None:  # noqa: ARG002 - the table counts verdicts
        """Count a verdict."""
        self._arms[arm].verdicts[verdict] += 1

    def _turn(self, name: str, *, checking: bool) -> None:
        """Stop the clock of the arm that ran, and turn to another."""
        now = time.monotonic()
        for arm in self._arms.values():
            arm.seconds, arm.since = arm.spent(now), None
        self._arms.setdefault(name, ArmProgress())
        self._current, self._checking = name, checking

    def __rich__(self) -> Group:
        """The table as it is now."""
        now = time.monotonic()
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("arm", no_wrap=True)
        if self._wide:
            table.add_column("", width=BAR)
        for name in ("requests", "tokens/s", "left"):
            table.add_column(name, justify="right", no_wrap=True)
        names = self._shown()
        longest = max((len(_middle_cut(visible(name))) for name in names), default=0)
        room = self._console.width - longest - NUMBERS - (BAR + 2 if self._wide else 0)
        table.add_column("verdicts", no_wrap=True, overflow="ellipsis", max_width=max(LEAST, room))
        for name in names:
            table.add_row(*self._row(name, now))
        hidden = len(self._arms) - len(names)
        more = [Text(f"... and {hidden} more arms")] if hidden else []
        return Group(table, *more, Text(self._summary(now), no_wrap=True, overflow="ellipsis"))

    @property
    def _wide(self) -> bool:
        return self._console.width >= WIDE

    def _shown(self) -> list[str]:
        """The arms that fit, the current one among them."""
        names, room = list(self._arms), max(1, self._console.height - BESIDES)
        at = names.index(self._current) if self._current in self._arms else 0
        first = max(0, min(at - room // 2, len(names) - room))
        return names[first : first + room]

    def _row(self, name: str, now: float) -> tuple[Text | ProgressBar, ...]:
        arm, current = self._arms[name], name == self._current
        complete = arm.total - arm.left
        spent = arm.spent(now)
        rate = f"{arm.tokens / spent:.0f}" if arm.tokens and spent else ""
        left = duration(spent * arm.left / arm.done) if arm.done and arm.left else ""
        return (
            Text(_middle_cut(visible(name)), style="bold" if current else ""),
            *([ProgressBar(max(arm.total, 1), complete, width=BAR)] if self._wide else []),
            Text(f"{complete}/{arm.total}"),
            Text(rate),
            Text(left),
            _verdicts(arm.verdicts, checking=current and self._checking),
        )

    def _summary(self, now: float) -> str:
        """The last line: time that passed, and the rest at the mean speed of the requests so far."""
        arms = self._arms.values()
        done, left = sum(arm.done for arm in arms), sum(arm.left for arm in arms)
        rest = f", about {duration(sum(arm.spent(now) for arm in arms) * left / done)} left" if done and left else ""
        return f"{duration(now - self._began)} passed{rest}; Ctrl-C stops, audit resume goes on"


def _middle_cut(name: str) -> str:
    """A name that fits its column: arms often differ at the end."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}\u2026{name[-half:]}"


def _verdicts(counts: Mapping[Verdict, int], *, checking: bool) -> Text:
    given = [verdict for verdict in WORST_FIRST if counts[verdict]]
    words = [Text(f"{counts[verdict]} {verdict}", COLOURS.get(verdict, "")) for verdict in given]
    return Text(", ").join([*words, *([Text("checking")] if checking else [])])


@contextmanager
def live_table() -> Iterator[LiveTable]:
    """The table on stderr, which is wiped at the end, also after Ctrl-C."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    table = LiveTable(console)
    with Live(table, console=console, transient=True, refresh_per_second=PER_SECOND):
        yield table
