"""Rounds of a run with a stop rule: each repeats the suite's cases with fresh streams and ends with a look.

A round repeats the cases of the undecided candidates, with their baselines,
controls and companions, under sample numbers that no earlier round had. Greedy
arms run in the first round only, because repetitions would be copies. The run's
events record the looks, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from audit.errors import UserError
from audit.runs.interim_looks import InterimLook, InterimResult, RunStopRule, interim_results, share, spent
from audit.runs.judge import exit_code, judge
from audit.runs.prepare import PreparedArm, PreparedRun, for_round
from audit.store import RunStatus, Store

PASSED = "every bound is reached"
FAILED = "a claim is broken"
COPIES = "more rounds would only copy what is undecided: at temperature 0 a case runs once"


@dataclass(frozen=True, slots=True)
class Rounds:
    """The inputs of one run's rounds."""

    prepared: PreparedRun
    rule: RunStopRule
    store: Store
    run: str
    generate: Callable[[PreparedArm], None]
    """Runs those requests of an arm that the store lacks."""
    announce: Callable[[str], None]


def require_first_round(prepared: PreparedRun, rule: RunStopRule) -> None:
    """Reject a limit below the size of one round.

    Raises:
        UserError: one round could exceed the limit.
    """
    most = _most(prepared.arms)
    if most > rule.max_tokens:
        raise UserError(
            f"{prepared.suite.path}: one round emits up to {most} tokens in all arms, more than --max-tokens "
            f"{rule.max_tokens}; write at least {most}, or use fewer cases"
        )


def run_rounds(rounds: Rounds) -> None:
    """Run rounds until the rule stops the run."""
    last = next(iter(reversed(interim_results(rounds.store.load_run(rounds.run).events))), None)
    while last is None or last.stopped is None:
        last = _round(rounds, last)


def _round(rounds: Rounds, last: InterimResult | None) -> InterimResult:
    number = 1 if last is None else last.look + 1
    arms = _arms(rounds.prepared, None if last is None else last.undecided, number)
    for arm in arms:
        rounds.generate(arm)
    judge([arm.planned for arm in arms], rounds.store, rounds.run, rounds.announce, InterimLook(number))
    found = _interim_look(rounds, number)
    rounds.store.set_status(rounds.run, RunStatus.RUNNING, found.detail())
    return found


def _arms(prepared: PreparedRun, undecided: Sequence[str] | None, number: int) -> tuple[PreparedArm, ...]:
    """The undecided candidates that further rounds can decide and their comparison arms, with the round's requests."""
    candidates = [
        arm.planned
        for arm in prepared.arms
        if arm.planned.spec is not None and (undecided is None or arm.planned.name in undecided)
    ]
    going = [each for each in candidates if number == 1 or not each.sampling.greedy]
    names = {name for each in going for name in (each.name, each.baseline, each.control, *each.noise)}
    kept = [arm for arm in prepared.arms if arm.planned.name in names or arm.planned.of in names - {None}]
    return tuple(for_round(prepared.suite, arm, number - 1) for arm in kept)


def _interim_look(rounds: Rounds, number: int) -> InterimResult:
    checks, record = rounds.store.checks(rounds.run), rounds.store.load_run(rounds.run)
    candidates = [arm.planned.name for arm in rounds.prepared.arms if arm.planned.spec is not None]
    codes = {name: exit_code(each for each in checks if each.arm == name) for name in candidates}
    undecided = tuple(name for name, code in codes.items() if code not in (0, 1))
    tokens = sum(arm.counts.output for arm in record.arms if not arm.kind.reads)
    code = exit_code(checks)
    stopped = _reason(rounds, code, undecided, number, tokens)
    return InterimResult(number, share(number), spent(number), tokens, undecided, code, stopped)


def _reason(rounds: Rounds, code: int, undecided: Sequence[str], number: int, tokens: int) -> str | None:
    """The reason to end the run after this look, or None."""
    if code in (0, 1):
        return PASSED if code == 0 else FAILED
    following = _arms(rounds.prepared, undecided, number + 1)
    if not following:
        return COPIES
    most = _most(following)
    if tokens + most > rounds.rule.max_tokens:
        return f"another round may emit {most} tokens, which would pass the limit of {rounds.rule.max_tokens}"
    return None


def _most(arms: Iterable[PreparedArm]) -> int:
    """The most tokens that the arms can emit; arms that read emit none."""
    going = [arm for arm in arms if not arm.planned.kind.reads]
    return sum(len(arm.requests) * arm.planned.sampling.max_new_tokens for arm in going)
