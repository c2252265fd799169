"""Differences of two stored runs: settings, verdicts, acceptance and outputs. Reads records, judges nothing.

Arms are compared by name, requests by case and sample. A request counts as the same work only if prompt and sampling
parameters are equal; outputs of independent draws differ on a correct engine too, so a difference is a fact, not a
fault.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from audit.evidence.divergence.triage import parting
from audit.evidence.environment import Environment
from audit.evidence.pairing import Divergence, Pair, divergence
from audit.evidence.records import ArmRecord, RequestRecord, request_order
from audit.store import Store, StoredCheck, StoredRun
from audit.store.base.canonical import jsonable
from engine.core.types import Role
from engine.record.trace import steps_of

ABSENT: Final = "absent"
COMPARED: Final = ("verdict", "n", "effect", "bound")
UNTOLD: Final = frozenset({"judged"})
"""Parts of an arm's specification that the differences of verdicts show already."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value that differs: its place and both values."""

    place: str
    a: Any
    b: Any


@dataclass(slots=True)
class Accepted:
    """Drafted and accepted tokens; for a position in the draft, how many steps drafted and kept so many."""

    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float | None:
        """Accepted of drafted; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True)
class AcceptanceChange:
    """Acceptance of one arm in one domain, or at one position in the draft (from 1), in both runs."""

    arm: str
    part: str
    a: Accepted
    b: Accepted


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference of one request: the step and token of the second run, both tokens, and both texts.

    margins: lead of each run's own token over its next best score, in the unit of the record; None if not recorded.
    """

    request: str
    step: int
    index: int
    tokens: tuple[int | None, int | None]
    margins: tuple[float | None, float | None]
    words: str


@dataclass(slots=True)
class ArmOutputs:
    """The outputs of one arm in both runs. `unlike` counts pairs with another prompt or other parameters."""

    arm: str
    equal: int = 0
    unlike: int = 0
    unpaired: int = 0
    partings: list[Parting] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunDiff:
    """All differences between two runs, `a` and `b`."""

    a: str
    b: str
    settings: tuple[Change, ...]
    verdicts: tuple[Change, ...]
    acceptance: tuple[AcceptanceChange, ...]
    outputs: tuple[ArmOutputs, ...]
    same_content: bool | None
    """True if the content roots are equal; None if a run has none."""

    @property
    def same(self) -> bool:
        """True if verdicts and outputs are the same."""
        return not self.verdicts and not any(
            output.partings or output.unpaired or output.unlike for output in self.outputs
        )


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run with its valid results."""

    run: StoredRun
    checks: tuple[StoredCheck, ...]


def run_diff(store: Store, a: str, b: str) -> RunDiff:
    """Compare two runs of a store. Raises CannotDecide: a trace is missing or cannot be decoded."""
    first, second = store.load_run(a), store.load_run(b)
    compared = settings_diff(JudgedRun(first, store.checks(a)), JudgedRun(second, store.checks(b)))
    acceptance: list[AcceptanceChange] = []
    outputs: list[ArmOutputs] = []
    for name in [arm.name for arm in first.arms if second.arm(arm.name) is not None]:
        ours, theirs = _Acceptance(), _Acceptance()
        outputs.append(_outputs(name, store.load_arm(a, name), store.load_arm(b, name), ours, theirs))
        acceptance += _acceptance(name, ours, theirs)
    return replace(compared, acceptance=tuple(acceptance), outputs=tuple(outputs))


def settings_diff(a: JudgedRun, b: JudgedRun) -> RunDiff:
    """Compare settings and verdicts of two runs and read no record; nothing stands under acceptance and outputs."""
    settings = tuple(_changes(_settings(a.run), _settings(b.run)))
    verdicts = tuple(_changes(_verdicts(a.checks), _verdicts(b.checks)))
    roots = (a.run.content_root, b.run.content_root)
    return RunDiff(a.run.ulid, b.run.ulid, settings, verdicts, (), (), None if None in roots else roots[0] == roots[1])


def environment_changes(then: Environment, now: Environment) -> tuple[Change, ...]:
    """Changes between two environments."""
    both = ({"packages": item.packages, "hardware": item.hardware, "code": item.code} for item in (then, now))
    a, b = (dict(_flat(jsonable(item), "")) for item in both)
    return tuple(_changes(a, b))


def _settings(run: StoredRun) -> dict[str, Any]:
    """Everything that was set or found, flat, by place."""
    place = run.environment
    parts: dict[str, Any] = {
        "suite": {"name": run.suite_name, "sha256": run.suite_sha256},
        "code": {"commit": run.code_commit, **place.code},
        "packages": place.packages,
        "hardware": place.hardware,
        **{f"artifact {used.role}": {"name": used.name, "sha256": used.sha256} for used in run.artifacts},
    }
    for arm in run.arms:
        spec = {key: value for key, value in arm.spec.items() if key not in UNTOLD}
        parts[f"arm {arm.name}"] = {"level": arm.level.name, "spec": spec, "effective": arm.effective.to_json()}
    return dict(_flat(parts, ""))


def _flat(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def _verdicts(checks: Iterable[StoredCheck]) -> dict[str, Any]:
    return {f"{check.arm} {check.check}: {name}": getattr(check, name) for check in checks for name in COMPARED}


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    for place in dict.fromkeys((*a, *b)):
        one, other = a.get(place, ABSENT), b.get(place, ABSENT)
        if one != other:
            yield Change(place, one, other)


@dataclass(slots=True)
class _Acceptance:
    """Acceptance of one arm by part."""

    parts: dict[str, Accepted] = field(default_factory=dict)

    def note(self, request: RequestRecord) -> None:
        domain = self.parts.setdefault(f"domain {request.domain}", Accepted())
        trace = request.trace
        for view in steps_of(trace):
            drafted = int(trace.n_drafted[view.index])
            accepted = int((trace.role[view.emitted] == Role.ACCEPTED).sum())
            domain.drafted += drafted
            domain.accepted += accepted
            for at in range(1, drafted + 1):
                position = self.parts.setdefault(f"position {at:3}", Accepted())
                position.drafted += 1
                position.accepted += accepted >= at


def _acceptance(arm: str, a: _Acceptance, b: _Acceptance) -> Iterator[AcceptanceChange]:
    """The parts that differ."""
    for part in sorted(a.parts | b.parts):
        one, other = a.parts.get(part, Accepted()), b.parts.get(part, Accepted())
        if asdict(one) != asdict(other):
            yield AcceptanceChange(arm, " ".join(part.split()), one, other)


def _outputs(name: str, a: ArmRecord, b: ArmRecord, drafting_a: _Acceptance, drafting_b: _Acceptance) -> ArmOutputs:
    """Walk through both arms in their order, one record of each in memory."""
    result, left, right = ArmOutputs(name), iter(a.requests), iter(b.requests)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        order = _order(one, other)
        if one is not None and order <= 0:
            drafting_a.note(one)
        if other is not None and order >= 0:
            drafting_b.note(other)
        if order == 0:
            assert one is not None
            assert other is not None
            _compare(Pair(other, one), result)
        else:
            result.unpaired += 1
        one = next(left, None) if order <= 0 else one
        other = next(right, None) if order >= 0 else other
    return result


def _order(one: RequestRecord | None, other: RequestRecord | None) -> int:
    """-1 if the first request comes next, 1 if the second, 0 if they are a pair."""
    if one is None or other is None:
        return 1 if one is None else -1
    first, second = request_order(one.case_id, one.sample), request_order(other.case_id, other.sample)
    return (first > second) - (first < second)


def _compare(pair: Pair, outputs: ArmOutputs) -> None:
    headers = [item.trace.header for item in (pair.baseline, pair.candidate)]
    if headers[0].prompt != headers[1].prompt or headers[0].sampling != headers[1].sampling:
        outputs.unlike += 1
        return
    parted = divergence(pair)
    if parted is None:
        outputs.equal += 1
        return
    outputs.partings.append(_parting(parted))


def _parting(parted: Divergence) -> Parting:
    a, b, at = parted.pair.baseline, parted.pair.candidate, parted.index
    tokens = [item.tokens[at] if at < len(item.tokens) else None for item in (a, b)]
    margins = [float(item.trace.margin[at]) if at < len(item.trace.margin) else None for item in (a, b)]
    return Parting(
        request=b.key,
        step=parted.step,
        index=at,
        tokens=(tokens[0], tokens[1]),
        margins=(margins[0], margins[1]),
        words=parting(b.text, a.text, "b", "a"),
    )
