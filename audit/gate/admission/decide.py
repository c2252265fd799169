"""Whether a pod may run: the newest decision of the gate on what its annotations name. Fails closed.

| condition                                                          | answer |
|--------------------------------------------------------------------|--------|
| an annotation is no digest, or names what the run did not use      | deny   |
| a role that the policy wants named has no annotation               | deny   |
| no decision on such a run under an accepted policy                 | deny   |
| the newest of them is not `allow`                                  | deny   |
| it is older than the limit, or from the future                     | deny   |
| a waiver or a review that it rests on is over                      | deny   |
| the log does not cover it, or no checkpoint of the given key does  | deny   |
| its run is not finished, or a later result of it is a fault        | deny   |
| it narrows what is served, and the pod is not annotated so         | deny   |
| with trusted keys: none of them signed it, for these digests       | deny   |
| no annotation                                                      | as the server was started |

If the webhook is started with keys, the statement of a decision that a trusted key signed takes the place of the
store's rows: a row without one, or with another's, admits nothing. What a key signed stays signed, so each payload is
verified once and remembered by its digest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from audit.attest.decision import ALLOW, FAILED, PASSED, urn
from audit.attest.statement import DECISION, SHORT, InToto, opened
from audit.attest.verify import moment_of
from audit.errors import UserError
from audit.gate.admission.reviews import CONFIGURATION, PREFIX, RUN, SERVES, AdmissionAnswer, Review, denied, names
from audit.gate.subjects import DIGEST
from audit.store.base.keys import PublicKey
from audit.store.reading.decision_index import DecidedRun, DecisionReader, KeptStatement, UsedModel
from audit.text.durations import CLOCK_SKEW
from audit.text.unsafe import quoted

HINT: Final = "; run audit gate on a run of these models, with the same --subject digests"
MOST: Final = 10_000
"""Payloads, and statements of other keys, that are remembered."""
NOT_MODELS: Final = frozenset({"engine", "run", "policy"})


@dataclass(frozen=True, slots=True)
class SignedDecisions:
    """The trusted keys, and what is known of the store's statements; threads may share it."""

    keys: tuple[PublicKey, ...]
    verified: dict[str, InToto] = field(default_factory=dict)
    refused: set[KeptStatement] = field(default_factory=set)

    def of_run(self, reader: DecisionReader, run: str) -> Iterator[InToto]:
        """The decisions on a run that a trusted key signed."""
        for kept in reader.statements(run, DECISION):
            statement = self.verified.get(kept.payload_sha256)
            if statement is None and kept not in self.refused:
                statement = self._read(kept, reader.envelope(kept))
            if statement is not None and statement.predicate.get("resourceUri") == urn("run", run):
                yield statement

    def _read(self, kept: KeptStatement, text: str) -> InToto | None:
        if len(self.verified) + len(self.refused) >= MOST:
            self.verified.clear()
            self.refused.clear()
        try:
            signed = opened(text.encode(), "statement", self.keys).signed
        except (UserError, RecursionError):
            self.refused.add(kept)
            return None
        if signed.payload_sha256 != kept.payload_sha256 or signed.statement.predicate_type != DECISION:
            self.refused.add(kept)
            return None
        self.verified[kept.payload_sha256] = signed.statement
        return signed.statement


@dataclass(frozen=True, slots=True)
class SignedRun:
    """A decided run as the signed statement of its newest decision states it, or why there is none that counts."""

    run: DecidedRun
    problem: str | None = None


def as_signed(run: DecidedRun, statements: Sequence[InToto], policies: frozenset[str]) -> SignedRun:
    """The run with what the signed statement of its newest decision states, unless a later one is no allow.

    `run` is as the store's rows state it, `statements` are the decisions on it that a trusted key signed. Decisions
    under policies other than `policies`, which are digests, do not count.
    """
    dated = [(item, moment) for item in statements if _policy(item) in policies and (moment := moment_of(item))]
    own = next(((item, at) for item, at in dated if _inputs(item).get(urn("decision")) == run.sha256), None)
    if own is None:
        return SignedRun(run, "no trusted key signed the newest decision; run audit gate with --key")
    statement, made = own
    later = [at for item, at in dated if at >= made and item is not statement and not _passed(item)]
    if later:
        return SignedRun(run, f"a decision that a trusted key signed at {max(later).isoformat()} is no allow")
    return SignedRun(_stated(run, statement, made))


def _stated(run: DecidedRun, statement: InToto, at: datetime) -> DecidedRun:
    parts = [(item.role, item.name.partition("/")[2] or item.role, item.sha256) for item in statement.subjects]
    return replace(
        run,
        models=tuple(UsedModel(*part) for part in parts if part[0] not in NOT_MODELS),
        configurations=frozenset(sha256 for kind, _, sha256 in parts if kind == "engine"),
        drafts=None,  # the statement has only those that a candidate arm used
        decision=run.decision if _passed(statement) or run.decision != ALLOW else FAILED,
        policy_sha256=_policy(statement),
        decided_at=at,
    )


def _passed(statement: InToto) -> bool:
    return statement.predicate.get("verificationResult") == PASSED


def _policy(statement: InToto) -> str:
    policy = statement.predicate.get("policy")
    digest = policy.get("digest") if isinstance(policy, Mapping) else None
    return str(digest.get("sha256")) if isinstance(digest, Mapping) else ""


def _inputs(statement: InToto) -> dict[str, Any]:
    listed = statement.predicate.get("inputAttestations")
    named = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    whole = [item for item in named if isinstance(item.get("digest"), Mapping)]
    return {str(item.get("uri")): item["digest"].get("sha256") for item in whole}


@dataclass(frozen=True, slots=True)
class Rules:
    """Terms of a decision.

    policies: digests of the accepted policies.
    max_age: largest age of a decision.
    unannotated: whether a pod without annotations is admitted.
    """

    policies: frozenset[str]
    max_age: timedelta
    unannotated: bool


Find = Callable[[Sequence[str]], Iterator[DecidedRun]]
"""Gives the decided runs that used models of all these digests, newest decision first."""
Vouch = Callable[[DecidedRun], SignedRun]
"""Gives a run as a trusted key signed it, or as the store has it where no key is asked for."""


def answer(review: Review, rules: Rules, find: Find, vouch: Vouch, now: datetime) -> AdmissionAnswer:
    """Admit or deny; raises only what `find` and `vouch` raise."""
    if review.settled is not None:
        return AdmissionAnswer(True, review.settled)
    if review.stray:
        return denied(f"put the annotations on the pod template too: {names(review.stray)}")
    if not review.annotations:
        text = "no annotation names a model or an engine configuration"
        return AdmissionAnswer(True, text) if rules.unannotated else denied(f"{text}; add {PREFIX}target: sha256:...")
    named, serves = review.annotations.get(RUN), review.annotations.get(SERVES)
    digests = {key: value for key, value in review.annotations.items() if key not in (RUN, SERVES)}
    wrong = [key for key, value in digests.items() if not DIGEST.fullmatch(value)]
    if wrong:
        return denied(f"no digest (sha256: and 64 lower-case hex digits): {names(wrong)}")
    digests = {key: value.removeprefix("sha256:") for key, value in digests.items()}
    models = {role: digest for role, digest in digests.items() if role != CONFIGURATION}
    if not models:
        return denied(f"no annotation names a model; add {PREFIX}target: sha256:...")
    # the newest decision counts, whichever run of these models it is about
    newest = next((run for run in find(sorted(set(models.values()))) if _matches(run, models, named)), None)
    if newest is None:
        words = ", ".join(f"{role} sha256:{digest[:SHORT]}" for role, digest in models.items())
        return denied(f"no decision under an accepted policy is about {words}{HINT}")
    signed = vouch(newest)
    newest = signed.run
    if signed.problem is not None:
        problems = [signed.problem]
    elif not _matches(newest, models, named):
        problems = ["the signed decision is about other models"]
    else:
        problems = [*_problems(newest, models, digests.get(CONFIGURATION), rules, now), *_unserved(newest, serves)]
    policy, at = newest.policy_sha256[:SHORT], f"{newest.decided_at:%Y-%m-%d %H:%M:%S}"
    made = f"run {newest.run}, policy sha256:{policy}, decided {at} UTC"
    return (
        denied(f"{'; '.join(problems)} ({made})")
        if problems
        else AdmissionAnswer(True, f"allowed by the gate ({made})")
    )


def _matches(run: DecidedRun, models: Mapping[str, str], ulid: str | None) -> bool:
    """True if each role has its digest in the run, and no other."""
    return (ulid is None or run.run == ulid) and all(
        set(_used(run, role)) == {digest} for role, digest in models.items()
    )


def _used(run: DecidedRun, role: str) -> Iterator[str]:
    """The digests of the role; if no model has it, of that kind. Drafts that no candidate arm used do not count."""
    used = [model for model in run.models if model.kind != "draft" or run.drafts is None or model.role in run.drafts]
    own = [model for model in used if model.role == role] or [model for model in used if model.kind == role]
    yield from (model.sha256 for model in own)


def _problems(
    run: DecidedRun, models: Mapping[str, str], configuration: str | None, rules: Rules, now: datetime
) -> Iterator[str]:
    if run.decision != "allow":
        yield f"the newest decision is {quoted(run.decision)}, not allow"
    if run.policy_sha256 not in rules.policies:
        yield "the decision's policy is not accepted"
    age = now - run.decided_at
    if age > rules.max_age:
        hours = timedelta(hours=1)
        yield f"the decision is {age / hours:.1f} hours old, {rules.max_age / hours:.1f} are allowed"
    if age < -CLOCK_SKEW:
        yield "the decision is from the future; check the clocks"
    if run.until is not None and run.until <= now:
        yield f"a waiver or review that the decision rests on ended {run.until:%Y-%m-%d %H:%M:%S} UTC"
    if not run.logged:
        yield "the store's log does not cover the decision"
    if run.signed is False:
        yield "no checkpoint that the given key signed covers the decision; run audit db checkpoint"
    if not run.finished:
        yield "the run is not finished"
    if run.later_fault is not None:
        yield f"a result after the decision is a fault: {run.later_fault}"
    if configuration is not None and configuration not in run.configurations:
        yield f"no candidate arm ran the configuration sha256:{configuration}"
    missing = [role for role in _named(run) if not _names(run, models, role)]
    if missing:
        yield f"the policy wants these named: {names(missing)}"


def _unserved(run: DecidedRun, serves: str | None) -> Iterator[str]:
    if run.serves is not None and (serves is None or not {word.strip() for word in serves.split(",")} <= run.serves):
        words = ",".join(sorted(run.serves))
        mend = f"annotate one that does with {PREFIX}{SERVES}: {words}"
        yield f"the decision is for pods that serve {words} alone; {mend}"


def _named(run: DecidedRun) -> list[str]:
    """The roles that the decision's policy wants named, those of `named_if_used` only where a run used them."""
    subjects = run.policy.get("subjects")
    stated: Mapping[str, list[str]] = subjects if isinstance(subjects, Mapping) else {}
    used = [role for role in stated.get("named_if_used", ()) if any(_used(run, role))]
    return list(dict.fromkeys([*stated.get("named", ()), *used]))


def _names(run: DecidedRun, models: Mapping[str, str], role: str) -> bool:
    """True if the pod names the role, or each of the models of that kind by its name in the suite."""
    own = {model.role for model in run.models if role in (model.role, model.kind)}
    return role in models or (bool(own) and own <= set(models))
