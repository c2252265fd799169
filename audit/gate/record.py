"""Sign a decision and record it: the row and its statement in one transaction, the envelope in a file.

Keys and the file's place are checked before anything is decided, so a decision that cannot be signed is not made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from audit.attest.decision import UNTIL, DecisionFacts, decision_statement, urn
from audit.attest.facts import artifact_name
from audit.attest.signing import stored
from audit.attest.statement import SHORT, StatementSubject, sign
from audit.errors import UserError, needs
from audit.gate.facts import RunFacts
from audit.gate.judgement import BUNDLE, GateJudgement, Signer, stored_decision
from audit.gate.rules.reviews import REVIEWS
from audit.gate.rules.run import engines, used_artifacts
from audit.gate.subjects import DIGEST
from audit.store import Store, StoredDecision
from audit.store.base import keys
from audit.text.staged_files import require_new, staged

RECOMPUTED: Final = "VERDICTS_RECOMPUTED"
LOG_SIGNED: Final = "LOG_SIGNED"
NOT_DEPLOYED: Final = frozenset({"suite", "policy"})
"""Kinds of artifacts of a run that nobody deploys."""


def signer_of(key_files: Sequence[Path], out: Path | None, *, stored: bool) -> Signer | None:
    """The keys and the place of a signed decision; None if nobody asked for one.

    Raises:
        UserError: a key that cannot be read, a missing extra, or no place for the envelope.
    """
    if not key_files:
        if out is not None:
            raise UserError("--out is for a signed decision; add --key FILE")
        return None
    if out is None and not stored:
        raise UserError("a signed decision on a bundle has no place; add --out FILE, or --store")
    private = tuple(map(keys.read_private, key_files))
    with needs("attest"):
        import securesystemslib.dsse
        import securesystemslib.signer  # noqa: F401  imported to know before the decision that it can be signed
    if out is not None:
        require_new(out)
    return Signer(private, out)


def recorded(judgement: GateJudgement, store: Store | None, *, known: bool = True) -> GateJudgement:
    """Sign a decision if the caller asked for it, and record it in the store; `known` if the store has the run."""
    decision, signer = stored_decision(judgement, known=known), judgement.request.signer
    if signer is None:
        if store is not None:
            store.add_decision(decision)
        return judgement
    signed = sign(decision_statement(decision_facts(judgement, decision)), signer.keys)
    with staged({} if signer.out is None else {signer.out: signed.text.encode()}):
        if store is not None:
            store.add_decision(decision, stored(signed, decision.run, judgement.request.now))
    return replace(judgement, signed=signed)


def decision_facts(judgement: GateJudgement, decision: StoredDecision) -> DecisionFacts:
    """Facts for a decision's statement."""
    policy, run = judgement.request.policy, judgement.run
    return DecisionFacts(
        run=run.ulid if run else None,
        decision=decision.decision,
        at=decision.created_at,
        policy_name=policy.name,
        policy_sha256=policy.sha256,
        subjects=_subjects(judgement),
        inputs=dict(_inputs(judgement, decision)),
        levels=tuple(_levels(judgement)),
    )


def _subjects(judgement: GateJudgement) -> tuple[StatementSubject, ...]:
    """Models that the candidate arms ran; without a run, those the caller named; else the policy."""
    asked, policy = judgement.request.subjects, judgement.request.policy
    listed = list(_of_run(judgement.facts)) if judgement.facts else []
    listed = listed or [StatementSubject(subject.role, subject.sha256) for subject in asked]
    # a damaged store may hold anything
    whole = {item.name: item for item in listed if item.name and DIGEST.fullmatch(f"sha256:{item.sha256}")}
    return tuple(whole.values()) or (StatementSubject(f"policy/{policy.name}", policy.sha256),)


def _of_run(facts: RunFacts) -> Iterator[StatementSubject]:
    for used in used_artifacts(facts):
        if used.kind not in NOT_DEPLOYED:
            yield StatementSubject(artifact_name(used.kind, used.role), used.sha256)
    yield from (StatementSubject(engine.role, engine.sha256) for engine in engines(facts))
    yield StatementSubject(f"run/{facts.run.ulid}", str(facts.run.record_root))


def _inputs(judgement: GateJudgement, decision: StoredDecision) -> Iterator[tuple[str, str]]:
    """Digests of what the decision rests on, and of the row that the store keeps of it, by URI."""
    request, run, facts = judgement.request, judgement.run, judgement.facts
    yield urn("decision"), decision.sha256
    for subject in request.subjects:
        yield urn("subject", subject.role), subject.sha256
    if request.serving.sha256 is not None:
        yield urn("serves"), request.serving.sha256
    for module in request.rego:
        yield urn("rego", module.name), module.sha256
    if judgement.origin.startswith(BUNDLE):
        yield urn("bundle"), judgement.origin.removeprefix(f"{BUNDLE}sha256:")
    for reason in judgement.outcome.reasons:
        if reason.statement is not None:
            end = () if reason.until is None else (UNTIL, reason.until.isoformat())
            kind = "review" if reason.requirement == REVIEWS else "waiver"
            yield urn(kind, reason.statement[:SHORT], *end), reason.statement
    if run is None or facts is None:
        return
    yield urn("suite", run.suite_name), run.suite_sha256
    for name, root in (("record", run.record_root), ("content", run.content_root)):
        if root is not None:
            yield urn(name, run.ulid), root
    if facts.ending.sha256 is not None:
        yield urn("proof" if request.checkpoint is None else "checkpoint"), facts.ending.sha256


def _levels(judgement: GateJudgement) -> Iterator[str]:
    if judgement.facts is not None:
        yield from [min(arm.level for arm in judgement.facts.candidates).name] if judgement.facts.candidates else []
        if not judgement.request.trust_verdicts:
            yield RECOMPUTED
        if judgement.facts.ending.by is not None:
            yield LOG_SIGNED
