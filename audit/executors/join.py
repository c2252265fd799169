"""Joins the shards of a run to one run, which is judged like a run of one process.

A shard is a finished run of its own, in a store or a bundle; its hashes are recomputed before anything is written. The
shards fit if they are of one suite, with the same models, arms and settings, in one environment, and have every request
once. The joined run has the requests as the shards recorded them, so its content root is that of a local run; run ids,
moments and durations are its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from audit.errors import CannotDecide, UserError
from audit.evidence.environment import actor
from audit.executors.job import without_places
from audit.runs.interruptions import stops_recorded
from audit.runs.judge import exit_code, judged_checks
from audit.runs.recorded_arms import recorded_arms
from audit.runs.runner import Progress, RunOutcome
from audit.runs.shard import SHARD, Shard, shard_of
from audit.runs.surroundings import differences
from audit.store import NewArm, NewRun, RequestKey, RunStatus, Store, StoredArm, StoredRun
from audit.store.base.values import IntegrityViolation
from audit.store.tables.runs import value_of

PIECE: Final = 64
"""Requests that are copied in one transaction."""
MEMORY: Final = "memory of finished requests"
"""Text of a run's event about an arm that remembers requests (`audit.runs.runner`)."""


@dataclass(frozen=True, slots=True)
class StoredShard:
    """One shard in a verified store. `place` names it in messages: a file, or the run's id."""

    place: str
    store: Store
    run: StoredRun
    shard: Shard


def stored_shard(place: str, store: Store, ulid: str, broken: Sequence[IntegrityViolation]) -> StoredShard:
    """The shard that a run of a store is; `broken` lists where the run has changed.

    Raises:
        UserError: the run is whole or not finished.
        CannotDecide: the run has changed since it finished.
    """
    run = store.load_run(ulid)
    shard = shard_of(run)
    if shard is None:
        raise UserError(f"{place}: run {run.ulid} is a whole run; make shards: audit run SUITE --shard I/N")
    if run.status is not RunStatus.FINISHED:
        raise UserError(f"{place}: shard {shard.name} is {run.status}; finish it: audit resume {run.ulid}")
    for first in broken[:1]:
        raise CannotDecide(f"{place}: shard {shard.name} has changed since it finished: {first.place}: {first.message}")
    return StoredShard(place, store, run, shard)


def join(
    shards: Sequence[StoredShard], store: Store, progress: Progress, *, accept_changes: bool = False
) -> RunOutcome:
    """Record the requests of all shards as one run of `store`, and judge it.

    Raises:
        UserError: a shard is missing, doubled or of another run, or ran in another environment without
            `accept_changes`; nothing has been stored.
    """
    ordered = _ordered(shards)
    for one in ordered[1:]:
        _require_same_run(ordered[0], one)
    elsewhere = tuple(_elsewhere(ordered, accepted=accept_changes))
    counts = _counts(ordered)
    name = store.begin_run(_start(ordered[0].run))
    with store.hold(name), stops_recorded(store, name):
        origins = ", ".join(item.run.ulid for item in ordered)
        memories = (event.detail for item in ordered for event in item.run.events if MEMORY in event.detail)
        store.set_status(name, RunStatus.RUNNING, f"joined from {len(ordered)} shards: {origins}")
        for detail in (*elsewhere, *memories):
            store.set_status(name, RunStatus.RUNNING, detail)
        _copy(ordered, counts, store, name, progress)
        code = _judge(store, name, progress)
        store.finish_run(name, RunStatus.FINISHED, code)
    return RunOutcome(name, code)


def _ordered(shards: Sequence[StoredShard]) -> list[StoredShard]:
    """The shards by number, each once."""
    places: dict[int, StoredShard] = {}
    of = shards[0].shard.of
    for shard in shards:
        if shard.shard.of != of:
            raise UserError(
                f"{shard.place}: shard {shard.shard.name} does not fit {shards[0].place}, one of {of} shards"
            )
        other = places.setdefault(shard.shard.index, shard)
        if other is not shard:
            raise UserError(
                f"{shard.place}: shard {shard.shard.name} is given twice, also as {other.place}; name it once"
            )
    missing = [f"{index}/{of}" for index in range(1, of + 1) if index not in places]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(f"shard {', '.join(missing[:3])}{more} is missing; name all {of} shards")
    return [places[index] for index in range(1, of + 1)]


def _require_same_run(first: StoredShard, other: StoredShard) -> None:
    before, now = first.run, other.run
    if before.suite_sha256 != now.suite_sha256:
        raise UserError(f"{other.place}: a shard of suite {now.suite_name} that is not the suite of {first.place}")
    digests = {used.role: used.sha256 for used in before.artifacts}
    for used in now.artifacts:
        if digests.get(used.role) != used.sha256:
            raise UserError(f"{other.place}: its {used.role} ({used.name}) differs from that of {first.place}")
    if [arm.name for arm in before.arms] != [arm.name for arm in now.arms]:
        raise UserError(f"{other.place}: its arms are not those of {first.place}; use one version of audit for all")
    for one, two in zip(before.arms, now.arms, strict=True):
        differing = next((name for name, value in _terms(one).items() if value != _terms(two)[name]), None)
        if differing is not None:
            raise UserError(
                f"{other.place}: arm {one.name} has another {differing} than in {first.place}; run all shards on "
                "machines of one class, with the same packages"
            )


def _terms(arm: StoredArm) -> dict[str, Any]:
    """Terms that an arm shares with the same arm of other shards."""
    spec = {name: value for name, value in arm.spec.items() if name != SHARD}
    return {
        "kind": arm.kind,
        "level": arm.level,
        "specification": spec,
        "number of requests": arm.spec[SHARD]["requests"],
        "effective configuration": without_places(arm.effective.to_json()),
    }


def _elsewhere(shards: Sequence[StoredShard], *, accepted: bool) -> Iterator[str]:
    """Differences between the environments of the first shard and the others, a line for each shard."""
    first = shards[0]
    for shard in shards[1:]:
        changes = list(differences(first.run.environment, shard.run.environment))
        if changes and not accepted:
            raise UserError(
                f"{shard.place}: shard {shard.shard.name} ran in another environment than {first.place}: {changes[0]}; "
                "run it where the others ran, or accept the changes with --accept-changes, which records them"
            )
        if changes:
            yield f"shard {shard.shard.name} ran elsewhere: {'; '.join(changes)}"


def _counts(shards: Sequence[StoredShard]) -> Mapping[str, list[int]]:
    """The number of requests of each shard, by arm; raises UserError: a request of the run is missing or in two."""
    result = [shard.store.finished(shard.run.ulid) for shard in shards]
    owners: dict[RequestKey, StoredShard] = {}
    for item, keys in zip(shards, result, strict=True):
        for key in keys:
            other = owners.setdefault(key, item)
            if other is not item:
                raise UserError(f"{item.place}: request {key.name} is in {other.place} too; make the shards again")
    for arm, total in shards[0].shard.totals.items():
        count = sum(key.arm == arm for key in owners)
        if count != total:
            raise UserError(f"arm {arm}: the shards have {count} requests of {total}; make the shards again")
    return {arm: [sum(key.arm == arm for key in keys) for keys in result] for arm in shards[0].shard.totals}


def _start(run: StoredRun) -> NewRun:
    whole = ({name: value for name, value in arm.spec.items() if name != SHARD} for arm in run.arms)
    arms = tuple(value_of(NewArm, arm, spec=spec) for arm, spec in zip(run.arms, whole, strict=True))
    return value_of(NewRun, run, actor=actor(), arms=arms)


def _copy(
    shards: Sequence[StoredShard], counts: Mapping[str, Sequence[int]], store: Store, name: str, progress: Progress
) -> None:
    """Copy arm by arm, so that the rows stand as in a local run."""
    totals = shards[0].shard.totals
    progress.planned(totals)
    for arm, total in totals.items():
        progress.arm(arm, total, 0)
        for item, share in zip(shards, counts[arm], strict=True):
            for start in range(0, share, PIECE):
                made = item.store.copies(item.run.ulid, arm, range(start, start + PIECE))
                store.add_requests(name, made)
                for new in made:
                    progress.advance(len(new.generation.tokens))


def _judge(store: Store, name: str, progress: Progress) -> int:
    """Judge a run by what its arms record about their checks; its exit code."""
    arms = recorded_arms(store.load_run(name), ())
    load = partial(store.load_arm, name)
    for check in judged_checks(arms.links, arms.checks, load, progress.judging, None, progress.judged):
        store.add_check(name, check)
    return exit_code(store.checks(name))
