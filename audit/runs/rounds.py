"""Rounds of a run with a stop rule: each repeats the suite's cases with fresh streams and ends with a look.

A round repeats the cases of the candidates that more evidence may decide, with their baselines, controls and
companions, under sample numbers that no earlier repetition had. Rounds double: the first has one repetition of the
suite, and each other as many as all rounds before it together, so all looks read at most about twice the final
evidence. Where the doubled round might pass the limit, it has as many repetitions as fit. Greedy arms run in the first
round only, because repetitions would be copies.

The run's events record the looks, and the number of repetitions follows from them and from the stored requests: an
interrupted run continues where it stopped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from audit.errors import UserError
from audit.evidence.verdicts import Verdict
from audit.runs.arms import slots, turns_of
from audit.runs.interim_looks import InterimLook, InterimResult, RunStopRule, interim_results, share, spent
from audit.runs.judge import Judging, exit_code, judge
from audit.runs.prepare import PreparedArm, PreparedRun, for_round
from audit.runs.situations.rounds import Directing, direct
from audit.store import RequestKey, RunStatus, StoredCheck
from audit.suite.spec import Suite

PASSED = "every bound is reached"
FAILED = "a claim is broken"
COPIES = "more rounds would only copy what is undecided: at temperature 0 a case runs once"
NO_EVIDENCE = "more rounds would lack the same evidence: no check that ran is undecided"


@dataclass(frozen=True, slots=True)
class Rounds(Directing):
    """The inputs of one run's rounds."""

    rule: RunStopRule
    progress: Judging


def require_first_round(prepared: PreparedRun, rule: RunStopRule) -> None:
    """Reject a limit below the size of the first round. Raises UserError: the first round could exceed the limit."""
    most = _most(prepared.suite, prepared.arms, 0)
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
    number, arms = 1, rounds.prepared.arms
    if last is not None:
        number, arms = last.look + 1, _arms(rounds.prepared, last.open)
    repetitions = repeat_suite(rounds, arms, 0 if last is None else last.repetitions)
    if last is None:
        direct(rounds)
    judge([arm.planned for arm in arms], rounds.store, rounds.run, rounds.progress, InterimLook(number))
    result = _interim_look(rounds, number, repetitions)
    rounds.store.set_status(rounds.run, RunStatus.RUNNING, result.detail())
    return result


def _arms(prepared: PreparedRun, candidates: Sequence[str]) -> tuple[PreparedArm, ...]:
    """The sampled ones of these candidates, with the arms that they are compared with."""
    planned = [arm.planned for arm in prepared.arms if arm.planned.name in candidates]
    going = [item for item in planned if not item.sampling.greedy]
    names = {name for item in going for name in (item.name, item.baseline, item.control, *item.noise)}
    return tuple(arm for arm in prepared.arms if arm.planned.name in names or arm.planned.of in names - {None})


def repeat_suite(rounds: Rounds, arms: Sequence[PreparedArm], earlier: int) -> int:
    """Run the round after `earlier` repetitions of the suite; return the number of all repetitions.

    Requests often end before their limit, so the room is measured anew until the round is
    complete or no further repetition fits. How many fit in the end depends only on what the
    requests emit: a resumed run reaches the same number.
    """
    done, end = earlier, 2 * earlier or 1
    while done < end:
        # the look before, or the check of the limit, found room for the first one
        count = _fitting(rounds, arms, range(done, end)) or int(done == earlier)
        if not count:
            break
        for arm in arms:
            rounds.generate(for_round(rounds.prepared.suite, arm, range(done, done + count)))
        done += count
    return done


def _fitting(rounds: Rounds, arms: Sequence[PreparedArm], ahead: range) -> int:
    """The number of repetitions that stay within the limit even if every request emits all that it may."""
    stored = rounds.store.finished(rounds.run)
    room = rounds.rule.max_tokens - _tokens(rounds)
    for count, repetition in enumerate(ahead):
        room -= _most(rounds.prepared.suite, arms, repetition, stored)
        if room < 0:
            return count
    return len(ahead)


def _interim_look(rounds: Rounds, number: int, repetitions: int) -> InterimResult:
    checks = rounds.store.checks(rounds.run)
    candidates = [arm.planned.name for arm in rounds.prepared.arms if arm.planned.spec is not None]
    codes = {name: exit_code(check for check in checks if check.arm == name) for name in candidates}
    undecided = tuple(name for name, code in codes.items() if code not in (0, 1))
    result = InterimResult(
        look=number,
        share=share(number),
        spent=spent(number),
        tokens=_tokens(rounds),
        undecided=undecided,
        exit_code=exit_code(checks),
        stopped=None,
        repetitions=repetitions,
        open=_open(checks, undecided),
    )
    return replace(result, stopped=_reason(rounds, result))


def _open(checks: Iterable[StoredCheck], undecided: Sequence[str]) -> tuple[str, ...]:
    """The undecided candidates with an inconclusive check; a check that lacks its evidence would lack it again."""
    inconclusive = {check.arm for check in checks if check.verdict is Verdict.INCONCLUSIVE}
    return tuple(name for name in undecided if name in inconclusive)


def _reason(rounds: Rounds, result: InterimResult) -> str | None:
    """The reason to end the run after this look, or None."""
    if result.exit_code in (0, 1):
        return PASSED if result.exit_code == 0 else FAILED
    following = _arms(rounds.prepared, result.open)
    if not following:
        return COPIES if result.open else NO_EVIDENCE
    most = _most(rounds.prepared.suite, following, result.repetitions)
    if result.tokens + most > rounds.rule.max_tokens:
        return f"another round may emit {most} tokens, which would pass the limit of {rounds.rule.max_tokens}"
    return None


def _tokens(rounds: Rounds) -> int:
    """Tokens emitted in all arms so far; arms that read emit none."""
    counts = [arm.counts for arm in rounds.store.load_run(rounds.run).arms if not arm.kind.reads]
    return sum(one.output + one.directed_output for one in counts)


def _most(
    suite: Suite, arms: Iterable[PreparedArm], repetition: int, stored: frozenset[RequestKey] = frozenset()
) -> int:
    """The most tokens that one repetition of the arms can emit, apart from the stored requests."""
    return sum(
        arm.planned.sampling.max_new_tokens * turns_of(arm.planned, slot)
        for arm in arms
        if not arm.planned.kind.reads
        for slot in slots(suite, arm.planned, repetition)
        if RequestKey(arm.planned.name, slot.case.id, slot.sample) not in stored
    )
