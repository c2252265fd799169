"""Adds directed requests to a run, in rounds: count what is missing, propose, run, count again.

A round's requests follow from the suite and from the records before it, so a run that stops among them goes on with the
same ones. Each runs in the candidate, in the plain arms that it is compared with, and in the arms that read it again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from audit.errors import UnreadableRecord
from audit.evidence.coverage.count import arm_facts, count
from audit.evidence.coverage.rule import needed
from audit.evidence.records import DIRECTED, ArmRecord
from audit.runs.prepare import PreparedArm, PreparedRun, with_cases
from audit.runs.situations.generators import GENERATORS, Brief, ProposedCase
from audit.store import Store
from audit.suite.spec import Case, DirectedSampling, Suite
from engine.backends import REGISTRY
from engine.core.errors import CapacityError, InvalidRequest

SHARES: Final = (0.3, 0.4, 0.5)
"""By round: the most tokens that the directed requests of an arm so far may emit, beside those of the run's mean arm.

The mean and not the arm's own: a greedy arm repeats nothing, so a sampled one beside it has many times its tokens.
"""

MOST: Final = 256
"""Requests that the generators look at; their traces stay in memory."""


@dataclass(frozen=True, slots=True)
class Directing:
    """A run, its store, and what answers its requests."""

    prepared: PreparedRun
    store: Store
    run: str
    generate: Callable[[PreparedArm], None]
    """Runs those requests of an arm that the store lacks."""


def direct(directing: Directing) -> None:
    """Add directed requests to each arm that asks for them."""
    suite = directing.prepared.suite
    # an engine that takes text only shows no steps either, and an earlier run has no such requests
    if not REGISTRY[suite.backend].tokens or directing.prepared.shard is not None:
        return
    emitted = [arm.counts.output for arm in directing.store.load_run(directing.run).candidates]
    for arm in directing.prepared.arms:
        spec = arm.planned.spec
        if spec is None or not spec.coverage.directed:
            continue
        family = _family(directing.prepared, arm)
        if not any(other.effective.origin for other in family):
            _direct_arm(directing, arm, family, sum(emitted) // len(emitted))


def _family(prepared: PreparedRun, arm: PreparedArm) -> list[PreparedArm]:
    """The plain arms of a candidate, the candidate, and the arms that read its tokens, in the order of the run."""
    planned = arm.planned
    names = {planned.name, planned.baseline, planned.control, *planned.noise}
    return [
        other
        for other in prepared.arms
        if other.planned.name in names or (other.planned.of == planned.name and other.planned.kind.reads)
    ]


def _direct_arm(directing: Directing, arm: PreparedArm, family: list[PreparedArm], emitted: int) -> None:
    """Run the rounds of an arm; `emitted` tokens are those of the run's mean arm."""
    suite, known = directing.prepared.suite, list[Case]()
    for number, share in enumerate(SHARES, start=1):
        try:
            record = directing.store.load_arm(directing.run, arm.planned.name)
            brief = _brief(suite, arm, record.keeping({f"{case.id}#0" for case in known}), known, number)
        except UnreadableRecord:
            # judging says so
            return
        if brief is None:
            return
        spent = sum(len(request.tokens) for request in brief.directed)
        cases = _within(_proposed(suite, arm, brief), int(share * emitted) - spent)
        # the next round has more room
        for other in family if cases else ():
            directing.generate(with_cases(suite, other, cases))
        known += cases


def _brief(suite: Suite, arm: PreparedArm, record: ArmRecord, known: Sequence[Case], number: int) -> Brief | None:
    """The brief of the generators; None if every floor is met, or nothing was answered."""
    spec, cases = arm.planned.spec, {case.id: case for case in (*suite.cases, *known)}
    answered = (request for request in record.keeping().requests if request.tokens and request.case_id in cases)
    own = list(islice(answered, MOST))
    assert spec is not None
    coverage = count(record, {})
    floors = needed(record, coverage, spec.coverage)
    unmet = {name: least - coverage.occurred[name] for name, least in floors.items() if coverage.occurred[name] < least}
    if not unmet or not own:
        return None
    return Brief(
        unmet=unmet,
        requests=own,
        directed=[request for request in record.requests if request.directed and request.tokens],
        cases=cases,
        facts=arm_facts(record),
        limit=arm.planned.sampling.max_new_tokens,
        number=number,
        seed=suite.seed,
    )


def _within(proposals: Iterable[ProposedCase], room: int) -> list[Case]:
    """The cases of those that fit into the room of so many tokens, or do if they are cut, in their order."""
    cases = []
    for proposal in proposals:
        tokens, case = min(proposal.tokens, room), proposal.case
        if tokens >= (proposal.least or proposal.tokens):
            shorter = replace(case.direction or DirectedSampling(), max_new_tokens=tokens)
            cases.append(replace(case, direction=shorter) if tokens < proposal.tokens else case)
            room -= tokens
    return cases


def _proposed(suite: Suite, arm: PreparedArm, brief: Brief) -> Iterator[ProposedCase]:
    for generator in GENERATORS:
        if not generator.meets & brief.unmet.keys():
            continue
        for place, proposal in enumerate(generator.propose(brief)):
            name = f"{DIRECTED}/{arm.planned.name}/{brief.number}/{generator.name}/{place}"
            case = replace(proposal.case, id=name, workload=DIRECTED, domain=DIRECTED)
            if _fits(suite, arm, case):
                yield replace(proposal, case=case)


def _fits(suite: Suite, arm: PreparedArm, case: Case) -> bool:
    """True if the engine takes the request: a prompt that was made longer may be too long for the model."""
    try:
        arm.engine.require(list(with_cases(suite, arm, [case]).requests.values()))
    except (InvalidRequest, CapacityError):
        return False
    return True
