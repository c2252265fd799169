"""Which requests of a run can be decoded apart from one another, and the shares of N shards.

A request may leave its arm if its content depends on itself alone: the arithmetic gives it the same bits beside any
neighbours, and no draft remembers other requests. Every other arm is decoded whole, by one process, in the order and
batches of a local run (`audit.runs.continuity.starts_again`), and so is an arm of another engine, whose batches cannot
be repeated, and one whose time a check measures. So the content is that of a local run, whatever N is.

An arm that reads what its candidate emitted goes where the candidate's request goes.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from audit.checks import load
from audit.errors import UserError
from audit.runs.continuity import starts_again
from audit.runs.prepare import PreparedArm, PreparedRun
from audit.runs.shard import Shard
from audit.store import RequestKey
from engine.record.effective import LoopOwner

MOST: Final = 10_000
"""Shards at most."""


def parse_shard(text: str) -> Shard:
    """The shard that I/N names. Raises UserError: no such shard."""
    matched = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if matched is None:
        raise UserError(f"--shard {text[:40]!r}: write I/N, for example 1/4 to 4/4")
    index, of = map(int, matched.groups())
    if not 1 <= of <= MOST:
        raise UserError(f"--shard {text}: the number of shards is from 1 to {MOST}")
    if not 1 <= index <= of:
        raise UserError(f"--shard {text}: the first number is from 1 to {of}")
    return Shard(index, of)


def share_of(prepared: PreparedRun, shard: Shard) -> PreparedRun:
    """The run with the requests of one shard alone; an arm may have none.

    Raises:
        UserError: the suite keeps its content in memory, so nothing could join it with the others.
    """
    require_joinable(prepared)
    places = _places(prepared, shard.of)
    arms = tuple(
        replace(arm, requests={key: one for key, one in arm.requests.items() if places[key] == shard.index})
        for arm in prepared.arms
    )
    totals = {arm.planned.name: len(arm.requests) for arm in prepared.arms}
    return replace(prepared, arms=arms, shard=Shard(shard.index, shard.of, totals))


def require_joinable(prepared: PreparedRun) -> None:
    """Raise UserError if the content of requests may not leave its process, or requests follow from answers."""
    if any(case.turns for case in prepared.suite.cases):
        raise UserError(
            f"{prepared.suite.path}: later turns follow from the answers of one process, so their arms cannot be "
            "spread; leave out --shard and --workers, or turns"
        )
    if not prepared.suite.text:
        raise UserError(
            f"{prepared.suite.path}: text: off keeps the content of requests in the memory of one process, so it "
            "cannot be spread; leave out --shard and --workers, or text: off"
        )


def divisible(prepared: PreparedRun, arm: PreparedArm) -> bool:
    """True if the requests of an arm may be decoded by several processes, with the content of a local run."""
    effective = arm.effective
    if arm.planned.kind.reads:
        return True
    if effective.decoder is not LoopOwner.OWN or effective.origin is not None or starts_again(arm):
        return False
    return arm.planned.name not in _timed(prepared)


def _timed(prepared: PreparedRun) -> set[str]:
    """Arms whose time a check measures: their requests share a machine with nothing but each other."""
    candidates = [arm.planned for arm in prepared.arms if arm.planned.spec is not None]
    timed = [
        candidate
        for candidate in candidates
        if candidate.spec and any(load(name).claim == "cost" for name in candidate.spec.checks)
    ]
    return {name for item in timed for name in (item.name, item.baseline) if name}


def _places(prepared: PreparedRun, of: int) -> Mapping[RequestKey, int]:
    """The shard of each request: a contiguous stretch of an arm's order, or the arm whole."""
    decoding = [arm for arm in prepared.arms if not arm.planned.kind.reads]
    apart = [arm for arm in decoding if divisible(prepared, arm)]
    places = {key: 1 + index * of // len(arm.requests) for arm in apart for index, key in enumerate(arm.requests)}
    whole = {arm.planned.name: arm for arm in decoding if arm not in apart}
    loads = [0] * of
    # the largest first, each to the shard with the least; ties by name, so that every machine finds the same
    for name in sorted(whole, key=lambda item: (-_cost(prepared, whole[item]), item)):
        least = loads.index(min(loads))
        loads[least] += _cost(prepared, whole[name])
        places |= dict.fromkeys(whole[name].requests, least + 1)
    return places | {
        key: places[replace(key, arm=arm.planned.along or "")]
        for arm in prepared.arms
        if arm.planned.kind.reads
        for key in arm.requests
    }


def _cost(prepared: PreparedRun, arm: PreparedArm) -> int:
    """The requests that an arm decodes or has read, by their largest length."""
    readers = [other for other in prepared.arms if other.planned.along == arm.planned.name]
    return arm.planned.sampling.max_new_tokens * sum(len(reader.requests) for reader in (arm, *readers))
