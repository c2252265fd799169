"""Judges a finished run again from its record, without models and without its suite file.

The new results are stored together, as one judgement, beside those before them. A check reads the same evidence as
before, so a difference comes from another version of the check, or from a changed store.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from audit.errors import UserError
from audit.evidence.environment import actor, environment
from audit.runs.interim_looks import InterimLook
from audit.runs.judge import judged_checks
from audit.runs.recorded_arms import RecordedArms, recorded_arms
from audit.runs.shard import require_whole
from audit.store import NewCheck, NewJudgement, RunStatus, Store, StoredCheck
from audit.store.base.canonical import number

COMPARED: Final = ("verdict", "n", "statistic", "p_value", "effect", "bound", "margin")
"""Deciding parts of a result; the wording of messages may improve."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One result that differs from the one before it. `changes` are in words; `verdict` if the verdict changed."""

    arm: str
    check: str
    changes: tuple[str, ...]
    verdict: bool


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A run's results as its record gives them, and where the stored ones differ."""

    arms: RecordedArms
    results: tuple[NewCheck, ...]
    differences: tuple[Difference, ...]


def judge_again(store: Store, run: str, announce: Callable[[str], None]) -> Recomputed:
    """Judge a finished run again and store the judgement.

    Raises:
        UserError: the run is not finished, or a shard, or has no results.
        CannotDecide: a trace is missing or cannot be decoded.
    """
    done = recomputed(store, run, announce)
    if not done.results:
        raise UserError(f"run {run} has no check that this version knows; nothing was judged")
    store.add_judgement(run, NewJudgement(actor(), environment(), done.results))
    return done


def recomputed(store: Store, run: str, announce: Callable[[str], None]) -> Recomputed:
    """The results of a finished run, computed from its record; nothing is stored.

    Raises:
        UserError: the run is not finished, or a shard.
        CannotDecide: a trace is missing or cannot be decoded.
    """
    record, before = store.load_run(run), store.checks(run)
    if record.status is not RunStatus.FINISHED:
        raise UserError(f"run {run} is {record.status}; only a finished run can be judged again")
    require_whole(record)
    arms = recorded_arms(record, before)
    made = tuple(judged_checks(arms.links, arms.checks, partial(store.load_arm, run), announce, _last_look(before)))
    return Recomputed(arms, made, tuple(_differences(before, made)))


def _last_look(before: Sequence[StoredCheck]) -> InterimLook | None:
    """The last look of a run with interim looks: its share of the error probabilities is spent already."""
    numbers = [look["number"] for item in before if (look := item.details.get("look"))]
    return InterimLook(max(numbers)) if numbers else None


def _differences(before: Sequence[StoredCheck], now: Sequence[NewCheck]) -> Iterator[Difference]:
    earlier = {(item.arm, item.check): item for item in before}
    for one in now:
        old = earlier.get((one.arm, one.name))
        if old is None:
            yield Difference(one.arm, one.name, (f"verdict none -> {one.result.verdict}",), verdict=True)
            continue
        pairs = {name: (_value(getattr(old, name)), _value(getattr(one.result, name))) for name in COMPARED}
        changes = tuple(f"{name} {_word(a)} -> {_word(b)}" for name, (a, b) in pairs.items() if a != b)
        if changes:
            yield Difference(one.arm, one.name, changes, verdict=old.verdict is not one.result.verdict)


def _value(value: Any) -> Any:
    return number(value) if isinstance(value, float) else value


def _word(value: Any) -> str:
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
