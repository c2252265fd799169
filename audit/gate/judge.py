"""Judge a run, of a store or of a bundle alone, and record the decision.

A store records every decision about its runs, whatever the outcome. An error that nobody foresaw ends in "cannot
decide" and is recorded too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from audit.errors import CannotDecide, UserError
from audit.gate.decide import decide
from audit.gate.decision import Decision, GateOutcome, outcome_of, undecided
from audit.gate.evidence import (
    by_bundle,
    by_checkpoint,
    by_proof,
    read_facts,
    read_watches,
    unlisted_in_bundle,
    unlisted_in_imports,
)
from audit.gate.facts import UNSIGNED, RunFacts, SignedEnding
from audit.gate.judgement import BUNDLE, GateJudgement, GateRequest
from audit.gate.record import recorded
from audit.gate.rego import rego_reasons
from audit.store import Store
from audit.store.base.values import IntegrityViolation

if TYPE_CHECKING:
    from audit.store.verified_bundle import OpenBundle


def judge(store: Store, name: str, request: GateRequest) -> GateJudgement:
    """Decide on the run called `name` (a ULID, a prefix of one, or latest) and record the decision."""
    return recorded(considered(store, name, request), store)


def considered(store: Store, name: str, request: GateRequest) -> GateJudgement:
    """The decision on a run that `judge` would make; nothing is recorded."""
    return _guarded(request, store.url, lambda: _facts(store, name, request))


def judge_bundle(path: Path, request: GateRequest, store: Store | None = None) -> GateJudgement:
    """Decide on the run of a bundle, without the store that it is from; record the decision in `store` if given.

    Raises:
        UserError: the bundle is refused.
    """
    # imported late: few decisions are on bundles
    from audit.store.verified_bundle import file_digest, opened

    with opened(path) as bundle:
        origin = f"{BUNDLE}sha256:{file_digest(path)}"
        judgement = _guarded(request, origin, lambda: _of_bundle(bundle, request))
    return recorded(judgement, store, known=False)


def _guarded(request: GateRequest, origin: str, read: Callable[[], RunFacts]) -> GateJudgement:
    """The decision; whatever is raised on the way, nothing is allowed."""
    facts: RunFacts | None = None
    try:
        facts = read()
        outcome = _decided(facts, request)
    except (UserError, CannotDecide) as error:
        outcome = outcome_of((undecided("run", str(error)),))
    except Exception as error:  # a gate that breaks must say so, and must not allow
        text = f"the gate failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        outcome = GateOutcome(Decision.CANNOT_DECIDE, (undecided("gate", text),), broken_off=True)
    return GateJudgement(facts, outcome, request, origin)


def _decided(facts: RunFacts, request: GateRequest) -> GateOutcome:
    policy = request.policy
    outcome = decide(facts, policy, request.subjects, request.now, no_subject=request.no_subject, serves=request.serves)
    outcome = outcome_of((*outcome.reasons, *rego_reasons(facts, request, outcome)))
    if request.expected not in (None, policy.sha256):
        text = f"policy {policy.name} is sha256:{policy.sha256}, sha256:{request.expected} was expected"
        return outcome_of((undecided("policy", text), *outcome.reasons))
    return outcome


def _facts(store: Store, name: str, request: GateRequest) -> RunFacts:
    run = store.resolve(name)
    broken = _places(store.damage((run,)))
    keys = request.policy.parts.keys
    ending = UNSIGNED
    if request.checkpoint is not None:
        ending = by_checkpoint(store, run, request.checkpoint, keys)
    elif request.proof is not None:
        ending = by_proof(store.load_run(run), request.proof, keys)
    facts = _read(store, run, broken, ending, request)
    unlisted, wanted = tuple(unlisted_in_imports(facts.run, request.policy.parts)), request.policy.parts.watched
    watches = None if wanted is None else read_watches(store, facts, wanted, request.now)
    return replace(facts, unlisted=unlisted, watches=watches)


def _places(broken: Iterable[IntegrityViolation]) -> tuple[str, ...]:
    return tuple(f"{place.place}: {place.message}" for place in broken)


def _of_bundle(bundle: OpenBundle, request: GateRequest) -> RunFacts:
    if request.checkpoint is not None:
        raise UserError("--checkpoint is of a store's log, which a bundle does not have; give --proof FILE instead")
    store, parts = bundle.store, request.policy.parts
    own = by_bundle(bundle.inclusion, parts.keys)
    ending = own if parts.signed or own.by is not None else UNSIGNED
    if request.proof is not None:
        ending = by_proof(store.load_run(bundle.run), request.proof, parts.keys)
    facts = _read(store, bundle.run, _places(bundle.broken), ending, request)
    unlisted = unlisted_in_bundle(bundle.inclusion, own, parts.reviews_within, request.now)
    return replace(facts, unlisted=(*unlisted, *unlisted_in_imports(facts.run, parts)))


def _read(store: Store, run: str, broken: tuple[str, ...], ending: SignedEnding, request: GateRequest) -> RunFacts:
    return read_facts(
        store, run, trust_verdicts=request.trust_verdicts, broken=broken, ending=ending, announce=request.announce
    )
