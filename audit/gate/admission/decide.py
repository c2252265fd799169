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
| with trusted keys: none of them signed it, for these digests       | deny   |
| no annotation                                                      | as the server was started |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from audit.attest.statement import SHORT
from audit.gate.admission.reviews import CONFIGURATION, PREFIX, RUN, AdmissionAnswer, Review, denied, names
from audit.gate.admission.signed import SignedRun
from audit.gate.subjects import DIGEST
from audit.store.reading.decision_index import DecidedRun
from audit.text.durations import CLOCK_SKEW
from audit.text.unsafe import quoted

HINT: Final = "; run audit gate on a run of these models, with the same --subject digests"


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
    wrong = [key for key, value in review.annotations.items() if key != RUN and not DIGEST.fullmatch(value)]
    if wrong:
        return denied(f"no digest (sha256: and 64 lower-case hex digits): {names(wrong)}")
    digests = {key: value.removeprefix("sha256:") for key, value in review.annotations.items() if key != RUN}
    models = {role: digest for role, digest in digests.items() if role != CONFIGURATION}
    if not models:
        return denied(f"no annotation names a model; add {PREFIX}target: sha256:...")
    named = review.annotations.get(RUN)
    # the newest decision counts, whichever run of these models it is about
    newest = next((run for run in find(sorted(set(models.values()))) if _matches(run, models, named)), None)
    if newest is None:
        return denied(f"no decision under an accepted policy is about {_words(models)}{HINT}")
    signed = vouch(newest)
    newest = signed.run
    if signed.problem is not None:
        problems = [signed.problem]
    elif not _matches(newest, models, named):
        problems = ["the signed decision is about other models"]
    else:
        problems = list(_problems(newest, models, digests.get(CONFIGURATION), rules, now))
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


def _words(models: Mapping[str, str]) -> str:
    return ", ".join(f"{role} sha256:{digest[:SHORT]}" for role, digest in models.items())
