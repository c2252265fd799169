"""Runs a suite: generate, store, judge; interruptible and resumable.

The runner stores every finished request at once, so an interrupted run loses at
most the requests in flight, and `resume` continues from there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from audit.errors import UserError
from audit.runs.continuity import remaining
from audit.runs.generate import generations
from audit.runs.interim_looks import RunStopRule, stop_rule
from audit.runs.interruptions import stops_recorded
from audit.runs.judge import Judging, exit_code, judge
from audit.runs.prepare import PreparedArm, PreparedRun, artifacts, next_turns, run_start
from audit.runs.rounds import Rounds, require_first_round, run_rounds
from audit.runs.shard import shard_of
from audit.runs.situations.rounds import Directing, direct
from audit.runs.surroundings import resumed
from audit.store import NewRequest, RequestKey, RunReason, RunStatus, Store, StoredRun
from audit.store.writing.contents import withholds
from engine.record.effective import Effective


class Progress(Judging):
    """Receives the progress of a run; a method that is not overridden does nothing."""

    def planned(self, totals: Mapping[str, int]) -> None:
        """The run begins; the number of requests of each arm, in the order in which they run."""

    def arm(self, name: str, total: int, done: int) -> None:
        """An arm of `total` requests begins; `done` of them are already stored."""

    def advance(self, tokens: int) -> None:
        """One request of the current arm is stored."""


class Quiet(Progress):
    """Discards progress."""


Fill = Callable[[Store, str, Progress], None]
"""Stores requests of a run by other means than this process's engines."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run."""

    run: str
    exit_code: int


def run(
    prepared: PreparedRun,
    store: Store,
    progress: Progress,
    rule: RunStopRule | None = None,
    reason: RunReason | None = None,
    fill: Fill | None = None,
) -> RunOutcome:
    """Run a prepared suite from its beginning: once, or with a stop rule in rounds; `reason` goes on record.

    Without a rule, `fill` may store requests before this process runs those that are left.

    Raises:
        UserError: one round could exceed the rule's limit; nothing has been stored.
        Interrupted: the user stopped the run; all finished requests are stored.
    """
    if rule is not None:
        require_first_round(prepared, rule)
    name = store.begin_run(run_start(prepared, rule, reason))
    with store.hold(name):
        return _go(prepared, store, name, progress, rule, fill)


def resume(
    prepared: PreparedRun,
    store: Store,
    name: str,
    progress: Progress,
    *,
    accept_changes: bool = False,
    fill: Fill | None = None,
) -> RunOutcome:
    """Continue an interrupted run; with `accept_changes` in another environment too, which goes on record.

    `fill` is that of `run`.

    Raises:
        UserError: another process executes the run, or it is finished, or was made with another suite, other models,
            another numerics mode, fewer arms, or in another environment.
        Interrupted: the user stopped the run again.
    """
    with store.hold(name):
        record = store.load_run(name)
        _require_resumable(prepared, record)
        store.set_status(name, RunStatus.RUNNING, resumed(record, prepared.environment, accepted=accept_changes))
        return _go(prepared, store, name, progress, stop_rule(record), fill)


def _require_resumable(prepared: PreparedRun, record: StoredRun) -> None:
    require_unfinished(record)
    _require_same_numerics(prepared, record)
    recorded = {(used.role, used.sha256) for used in record.artifacts}
    for used in artifacts(prepared):
        if (used.role, used.sha256) not in recorded:
            raise UserError(
                f"run {record.ulid}: {used.role} ({used.name}) has changed since the run began; start a new run"
            )
    _require_recorded_arms(prepared, record)
    shard = shard_of(record)
    if shard != prepared.shard:
        begun = "a whole run" if shard is None else f"shard {shard.name}"
        raise UserError(f"run {record.ulid} began as {begun}; continue it with: audit resume {record.ulid}")


def _require_recorded_arms(prepared: PreparedRun, record: StoredRun) -> None:
    """Reject arms that the run did not begin with: another version of this program may compare with further ones."""
    recorded = {arm.name for arm in record.arms}
    added = [arm.planned.name for arm in prepared.arms if arm.planned.name not in recorded]
    if added:
        raise UserError(
            f"run {record.ulid} began without arm {added[0]}, which this version of audit compares with; "
            "start a new run, or resume with the version that began this one"
        )


def _require_same_numerics(prepared: PreparedRun, record: StoredRun) -> None:
    """Reject another numerics mode: an arm with requests from two modes would be comparable with neither."""
    before = {arm.name: _mode(arm.effective) for arm in record.arms}
    for arm in prepared.arms:
        name, now = arm.planned.name, _mode(arm.effective)
        if before.get(name, now) != now:
            raise UserError(
                f"run {record.ulid}: arm {name} began with numerics {before[name]}, here it would go on with {now}; "
                "resume where it began, or start a new run"
            )


def _mode(effective: Effective) -> str | None:
    return None if effective.numerics is None else effective.numerics.mode


def require_unfinished(record: StoredRun) -> None:
    """Raise UserError if the run is finished, or kept its content in memory."""
    if record.status is RunStatus.FINISHED:
        raise UserError(f"run {record.ulid} is finished; see it with: audit show {record.ulid}")
    if any(withholds(arm.spec) for arm in record.arms):
        raise UserError(
            f"run {record.ulid} kept the content of its requests in memory (text: off), and it is gone; "
            "run its suite again"
        )


def _go(
    prepared: PreparedRun, store: Store, name: str, progress: Progress, rule: RunStopRule | None, fill: Fill | None
) -> RunOutcome:
    with stops_recorded(store, name, resumable=prepared.suite.text):
        progress.planned({arm.planned.name: len(arm.requests) for arm in prepared.arms})
        if fill is not None and rule is None:
            fill(store, name, progress)
        finished = store.finished(name)

        def generate(arm: PreparedArm) -> None:
            part: PreparedArm | None = arm
            while part is not None:
                memory = _generate(part, store, name, finished, progress)
                # digests of requests without a salt
                if memory is not None and prepared.suite.text:
                    store.set_status(name, RunStatus.RUNNING, memory)
                part = next_turns(prepared.suite, part, partial(store.load_arm, name))

        if rule is not None:
            run_rounds(Rounds(prepared, store, name, generate, rule, progress))
        else:
            for arm in prepared.arms:
                generate(arm)
            direct(Directing(prepared, store, name, generate))
        if rule is None and prepared.shard is None:
            judge([arm.planned for arm in prepared.arms], store, name, progress)
        code = exit_code(store.checks(name))
        store.finish_run(name, RunStatus.FINISHED, code)
    return RunOutcome(name, code)


def _generate(
    arm: PreparedArm, store: Store, name: str, finished: frozenset[RequestKey], progress: Progress
) -> str | None:
    """Run the requests that the store lacks; returns a line about the memory of an engine that remembers requests."""
    todo = {request.id: key for key, request in arm.requests.items() if key not in finished}
    progress.arm(arm.planned.name, len(arm.requests), len(arm.requests) - len(todo))
    load = partial(store.load_arm, name)
    rest = remaining(arm, finished, load)
    requests = rest.requests
    arm.engine.forget()
    before = arm.engine.memory()
    for generation in generations(arm, requests, load):
        if generation.request.id not in todo:
            rest.require_same(generation)
            continue
        key = todo[generation.request.id]
        new = NewRequest(key.arm, arm.domain(key.case_id), key.case_id, key.sample, generation)
        store.add_requests(name, (new,))
        progress.advance(len(generation.tokens))
    return None if before is None or not requests else memory_line(arm, before)


def memory_line(arm: PreparedArm, before: str) -> str:
    """The line of a run's record about an engine that remembers requests."""
    return f"arm {arm.planned.name}: memory of finished requests from {before} to {arm.engine.memory()}"
