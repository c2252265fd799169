"""Reads the facts of a decision: hashes and log checked, verdicts computed from the record, signatures, live servers.

The verdicts are computed at every decision and kept nowhere: whoever can write to the store could write a cache too.
A stored fault of a check that this version lacks still counts. An alarm of a watch counts if the watch stored it, or if
the detectors raise it over the stored series: an edited column of alarms hides nothing, even where nobody checks the
log.

"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from audit.attest.statement import REVIEW, WAIVER, moment
from audit.attest.waivers import stated
from audit.checks import load
from audit.errors import CannotDecide, UserError
from audit.evidence.verdicts import Verdict
from audit.gate.facts import (
    UNSIGNED,
    ArmWorkload,
    CheckParameters,
    RunFacts,
    SeriesAlarm,
    SignedEnding,
    WatchedSeries,
    WatchFacts,
    workload_of,
)
from audit.gate.policy_parts import PolicyParts, TrustedKeys, WatchRule
from audit.gate.rules.run import used_artifacts
from audit.runs.recorded_arms import RecordedArms, recorded_arms
from audit.runs.rejudge import recomputed
from audit.store import NewCheck, RunStatus, Store, StoredArm, StoredCheck, StoredCoverage, StoredRun
from audit.store.base.keys import PublicKey, parse_public
from audit.store.base.ulid import time_of
from audit.store.bundle.inclusion import BundleInclusion
from audit.store.ledger import notes, proof
from audit.store.ledger.proof import ProvenRun
from audit.store.reading.watches import StoredWatch
from audit.store.tables.runs import IMPORTED, value_of
from audit.text.documents import decode_text, parse_json, read_bytes
from audit.text.durations import CLOCK_SKEW
from audit.watch.detect import Detectors
from audit.watch.reference import lower_bound


def read_facts(
    store: Store,
    run: str,
    *,
    trust_verdicts: bool,
    broken: tuple[str, ...],
    ending: SignedEnding = UNSIGNED,
    announce: Callable[[str], None],
) -> RunFacts:
    """The facts for a decision on a run, which is named by its ULID.

    `trust_verdicts` takes the stored verdicts instead of computing them; `announce` is called with each arm that is
    judged. `broken` are damaged places of the run's record and log: a damaged record is not read. `ending` is what a
    signature says about the run's end.
    """
    said = stated(store.attestations.of_run(run, (WAIVER, REVIEW)))
    stored = store.load_run(run)
    known = partial(RunFacts, stored, begun=_begun(run), ending=ending, stated=said, attempts=store.attempts(run))
    if broken or stored.status is not RunStatus.FINISHED or trust_verdicts:
        return _of_stored(store, stored, broken, known, trusted=trust_verdicts)
    try:
        done = recomputed(store, run, announce)
        workloads = _workloads(store, stored)
    except (CannotDecide, UserError) as error:
        return known(store.checks(run), (str(error),))
    checks = (*map(_as_stored, done.results), *_unknown_faults(store.checks(run), done.results))
    differing = [difference for difference in done.differences if difference.verdict]
    lines = [f"arm {item.arm}: {item.check}: the stored result differs: {item.changes[0]}" for item in differing]
    return known(
        checks,
        broken,
        certified_coverage(checks, _coverage(done.results)),
        workloads,
        parameters_of(done.arms),
        remarks=(*lines, *done.arms.unknown),
    )


def _of_stored(
    store: Store, run: StoredRun, broken: tuple[str, ...], known: Callable[..., RunFacts], *, trusted: bool
) -> RunFacts:
    """The facts as the store states them: of a damaged or unfinished run, or if the caller trusts them."""
    checks, coverage = store.checks(run.ulid), store.coverage(run.ulid)
    whole = not broken and run.status is RunStatus.FINISHED
    arms = recorded_arms(run, checks)
    return known(
        checks,
        broken,
        certified_coverage(checks, coverage),
        _workloads(store, run) if whole else {},
        parameters_of(arms),
        trusted=trusted,
    )


def _begun(run: str) -> datetime | None:
    milliseconds = time_of(run)
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def _workloads(store: Store, run: StoredRun) -> dict[str, ArmWorkload]:
    return {arm.name: workload_of(store.load_arm(run.ulid, arm.name)) for arm in run.candidates}


def parameters_of(arms: RecordedArms) -> dict[str, dict[str, CheckParameters]]:
    """The parameters with which each candidate arm's checks judged."""
    return {
        arm: {name: CheckParameters(given, load(name).defaults) for name, given in judged.checks.items()}
        for arm, judged in arms.checks.items()
    }


def _as_stored(check: NewCheck) -> StoredCheck:
    known = {"arm": check.arm, "check": check.name, "claim": check.claim, "level": check.level}
    return value_of(StoredCheck, check.result, **known, created_at=datetime.now(UTC), erased=0)


def _unknown_faults(stored: Iterable[StoredCheck], made: Iterable[NewCheck]) -> Iterable[StoredCheck]:
    """Stored faults that this version cannot compute: leaving them out would be the easier decision."""
    known = {(check.arm, check.name) for check in made}
    return (check for check in stored if check.verdict is Verdict.FAULT and (check.arm, check.check) not in known)


def _coverage(made: Iterable[NewCheck]) -> Iterable[StoredCoverage]:
    for check in made:
        for count in check.coverage:
            yield StoredCoverage(check.arm, check.name, count.situation, count.occurred, count.examined, count.least)


def certified_coverage(
    checks: Iterable[StoredCheck], coverage: Iterable[StoredCoverage]
) -> Mapping[str, Mapping[str, int]]:
    """By arm and situation, the fewest examinations by any certified check whose claim covers the situation.

    The fewest, because a fault that one check alone can see stays unseen where that check did not look.
    """
    certified = {(check.arm, check.check) for check in checks if check.verdict is Verdict.CERTIFIED}
    least: dict[str, dict[str, int]] = {}
    for row in coverage:
        if (row.arm, row.check) in certified:
            counts = least.setdefault(row.arm, {})
            counts[row.situation] = min(row.examined, counts.get(row.situation, row.examined))
    return least


MOST_BYTES: Final = 2**24


def by_checkpoint(store: Store, run: str, path: Path, keys: TrustedKeys) -> SignedEnding:
    """The run's end in the log of the store, by a signed checkpoint."""
    raw = read_bytes(path, MOST_BYTES)
    text = decode_text(str(path), raw)
    ending = _signed(keys, lambda key: _checkpoint_problem(store, run, text, str(path), key))
    return replace(ending, sha256=hashlib.sha256(raw).hexdigest())


def _checkpoint_problem(store: Store, run: str, text: str, place: str, key: PublicKey) -> str | None:
    head = notes.opened(text, key, place)
    for problem in store.check_checkpoints((head,)):
        return f"{place}: {problem}"
    entry = store.ending_entry(run)
    if entry is None or entry >= head.size:
        return f"{place}: the run ended after this checkpoint; sign a new one: {proof.SIGN}"
    return None


def by_proof(run: StoredRun, path: Path, keys: TrustedKeys) -> SignedEnding:
    """The run's end by a proof of `audit db prove`, without the store that it is from."""
    raw = read_bytes(path, MOST_BYTES)
    try:
        document = parse_json(decode_text(str(path), raw))
    except ValueError as error:
        return SignedEnding(problem=f"{path}: {error}")
    ending = _signed(keys, lambda key: _proof_problem(run, proof.verify(document, key, str(path)), str(path)))
    return replace(ending, sha256=hashlib.sha256(raw).hexdigest())


def by_bundle(shown: BundleInclusion | None, keys: TrustedKeys) -> SignedEnding:
    """The run's end in the log of the store that wrote a bundle, by the checkpoint in the bundle."""
    if shown is None:
        return SignedEnding(problem="it has no signed checkpoint of its store's log")

    def problem_of(key: PublicKey) -> None:
        notes.opened(shown.note, key, "its checkpoint")

    return replace(_signed(keys, problem_of), sha256=hashlib.sha256(shown.note.encode()).hexdigest())


def unlisted_in_bundle(
    shown: BundleInclusion | None, ending: SignedEnding, within: timedelta, now: datetime
) -> Iterator[str]:
    """Why a bundle may lack a signed statement of its run; `ending` is that of `by_bundle`."""
    stated = None if shown is None else shown.head.statements
    problem = ending.problem or ("its checkpoint, of an earlier version, lists none" if stated is None else None)
    yield from _unlisted("the bundle", problem, timedelta(0) if stated is None else now - stated.at, within)


LISTED: Final = re.compile(r", statements of (\S+) by (\S+)")


def unlisted_in_imports(run: StoredRun, parts: PolicyParts) -> Iterator[str]:
    """Why bundles that a run came in may have lacked one, as its events state; nothing for a run that was made here."""
    for event in run.events:
        if not event.detail.startswith(IMPORTED):
            continue
        stated = LISTED.search(event.detail)
        at, key = (moment(stated[1]), parse_public(stated[2])) if stated else (None, None)
        problem = "it was imported without --key" if at is None or key is None else None
        if key is not None and parts.keys.holder(key) is None:
            problem = f"keys.trusted does not list the key {key.name} ({key.id.hex()}) of the import"
        place, age = f"the bundle of the import at {event.at:%Y-%m-%d %H:%M}", event.at - (at or event.at)
        yield from _unlisted(place, problem, age, parts.reviews_within)


def _unlisted(place: str, problem: str | None, age: timedelta, within: timedelta) -> Iterator[str]:
    if problem is None and not -CLOCK_SKEW <= age <= within:
        problem = f"the signed list of its statements is {age} old, at most {within} are allowed"
    if problem is not None:
        yield f"{place} may lack a rejection: {problem}"


def _proof_problem(run: StoredRun, proven: ProvenRun, place: str) -> str | None:
    rows = {row.kind: row.values for row in proven.rows}
    if rows["run"]["ulid"] != run.ulid:
        return f"{place}: it is of run {rows['run']['ulid']}"
    if rows["state"]["record_root"] != run.record_root:
        return f"{place}: the signed log has record root {rows['state']['record_root']}, the run {run.record_root}"
    return None


def _signed(keys: TrustedKeys, problem_of: Callable[[PublicKey], str | None]) -> SignedEnding:
    """The verdict of the first trusted key that signed; a revoked key's signature is named as such."""
    refused = "the policy trusts no key; name public keys under keys.trusted"
    for holder, key in keys.trusted.items():
        try:
            problem = problem_of(key)
        except (UserError, CannotDecide) as error:
            refused = str(error)
            continue
        if keys.is_revoked(key):
            return SignedEnding(problem=f"signed by the key of {holder}, which the policy revokes")
        return SignedEnding(by=holder) if problem is None else SignedEnding(problem=problem)
    for key in keys.revoked:
        if _signs(key, problem_of):
            return SignedEnding(problem=f"signed by the key {key.name}, which the policy revokes")
    return SignedEnding(problem=refused)


def _signs(key: PublicKey, problem_of: Callable[[PublicKey], str | None]) -> bool:
    try:
        problem_of(key)
    except (UserError, CannotDecide):
        return False
    return True


NO_MODELS: Final = ("suite", "policy")
"""Kinds of artifacts that are no models."""


def read_watches(store: Store, facts: RunFacts, wanted: WatchRule, now: datetime) -> WatchFacts:
    """The watches that may count for a run: those of the named servers, else those compared with the run's models."""
    since, watches = now - timedelta(days=wanted.days), store.watches.all()
    models = _models(facts)

    def counts(watch: StoredWatch) -> bool:
        if wanted.urls:
            return watch.settings.url in wanted.urls
        return watch.settings.run is not None and _same(store, watch.settings.run, facts, models)

    counting = [watch for watch in watches if counts(watch)]
    series = tuple(_series(store, watch, since) for watch in counting)
    bounds = {arm.name: _bound(store, facts, arm) for arm in facts.candidates if arm.counts.drafted}
    return WatchFacts(bounds, series, len(watches) - len(counting))


def _same(store: Store, run: str, facts: RunFacts, models: frozenset[tuple[str, str]]) -> bool:
    """True for the run itself and for another one of the same models."""
    if run == facts.run.ulid:
        return True
    return bool(models) and _models(RunFacts(store.load_run(run), ())) == models


def _models(facts: RunFacts) -> frozenset[tuple[str, str]]:
    """Role and digest of every model."""
    return frozenset((ref.role, ref.sha256) for ref in used_artifacts(facts) if ref.kind not in NO_MODELS)


def _bound(store: Store, facts: RunFacts, arm: StoredArm) -> float:
    """The lower bound that `audit watch --run` takes; the plain rate, which is higher, where there is none."""
    try:
        return lower_bound(store, facts.run.ulid, arm, facts.checks).rate
    except UserError:
        return (arm.counts.accepted or 0) / (arm.counts.drafted or 1)


def _series(store: Store, watch: StoredWatch, since: datetime) -> WatchedSeries:
    readings, detectors = store.watches.readings(watch.id), Detectors(watch.settings)
    detectors.replay(readings)
    again = {SeriesAlarm(alarm.reading.model, alarm.direction.value, alarm.reading.at) for alarm in detectors.alarms}
    stored = {
        SeriesAlarm(reading.model, reading.alarm, reading.at) for reading in readings if reading.alarm is not None
    }

    def recent(at: datetime) -> bool:
        return at >= since

    return WatchedSeries(
        watch,
        tuple(reading for reading in readings if recent(reading.at)),
        tuple(sorted((item for item in again | stored if recent(item.at)), key=lambda item: item.at)),
    )
