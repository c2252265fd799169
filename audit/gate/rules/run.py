"""Rules on the run as a whole: its record, its signed log, its age, its suite and its arms, and the models in it.

What the deployment runs, its subjects, is compared with what the candidate arms ran.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from audit.gate.decision import CLOCK, Reason, blocked, remark, undecided
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.subjects import Subject
from audit.store import ArtifactRef, RunStatus, StoredArm
from audit.store.base.governance import used_drafts
from audit.store.reading.reader import PASSED
from audit.text.durations import CLOCK_SKEW

TRUSTED = "--trust-verdicts: the stored verdicts decide, nobody computed them from the record"


def run_reasons(facts: RunFacts, policy: Policy, now: datetime) -> Iterator[Reason]:
    """Why the run itself is no evidence under the policy."""
    run = facts.run
    if facts.trusted:
        reason = remark if policy.parts.stored_verdicts else undecided
        yield reason("verdicts", TRUSTED)
    for line in facts.remarks:
        yield remark("verdicts", line)
    if facts.broken:
        more = f" and {len(facts.broken) - 1} more places" if len(facts.broken) > 1 else ""
        yield undecided("record", f"not what it was when the run finished: {facts.broken[0]}{more}")
    if run.status is not RunStatus.FINISHED or run.finished_at is None:
        yield undecided("run", f"the run is {run.status}, not finished")
    else:
        yield from _times(facts, run.finished_at, policy.max_age, now)
    yield from _signature(facts, policy)
    tokens = sum(arm.counts.output for arm in facts.candidates)
    if tokens < policy.min_tokens:
        yield undecided("min_tokens", f"the candidate arms emitted {tokens} tokens, {policy.min_tokens} are required")
    if policy.suites and run.suite_sha256 not in policy.suites:
        yield undecided(
            "suites", f"suite {run.suite_name} sha256:{run.suite_sha256} is not one that the policy accepts"
        )
    yield from _absent_arms(facts)
    yield from _attempts(facts, policy)


def _times(facts: RunFacts, finished: datetime, limit: timedelta, now: datetime) -> Iterator[Reason]:
    """The end ages from the moment in the run's id at the latest: a column can be edited, the id is hashed."""
    begun = facts.begun or facts.run.started_at
    if abs(facts.run.started_at - begun) > CLOCK_SKEW:
        text = f"the run's id is of {begun:%Y-%m-%d %H:%M}, its row says another start"
        yield undecided("max_age", text, about=CLOCK)
    age = now - min(begun, finished)
    if age > limit:
        yield undecided("max_age", f"the run began {_spoken(age)} ago, at most {_spoken(limit)} are allowed")
    for word, moment in (("began", begun), ("finished", finished)):
        if moment - now > CLOCK_SKEW:
            text = f"the run {word} {_spoken(moment - now)} in the future; check the clocks"
            yield undecided("max_age", text, about=CLOCK)
            break


def _spoken(span: timedelta) -> str:
    days = span / timedelta(days=1)
    return f"{days:.1f} days" if days >= 1 else f"{span / timedelta(hours=1):.1f} hours"


def _signature(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    if facts.ending.problem is not None:
        yield undecided("signed", facts.ending.problem)
    elif facts.ending.by is None and policy.parts.signed:
        yield undecided("signed", "the policy requires a log that a trusted key signed, and none was given")


def _absent_arms(facts: RunFacts) -> Iterator[Reason]:
    """A reason for each arm of the suite that the run lacks: it may have been the one that failed."""
    for entry in facts.run.suite_document.get("arms", ()):
        wanted = entry["name"]
        if not any(made_of(arm, wanted) for arm in facts.candidates):
            yield undecided("arms", f"the suite has an arm {wanted}, and the run's record does not", wanted)


def made_of(arm: StoredArm, entry: str) -> bool:
    """True if the arm is that of the entry of a suite, or one of those into which the entry expands."""
    return arm.name == entry or arm.name.startswith(f"{entry}.")


def _attempts(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    """Reasons about other runs of the same suite and models: whoever repeats a run until it passes shows nothing."""
    ended = [item for item in facts.attempts if item.status is not RunStatus.RUNNING]
    newer = [item for item in ended if item.ulid > facts.run.ulid]
    failed = [item for item in ended if item.ulid < facts.run.ulid and item.ended != PASSED]
    if newer and newer[-1].ended != PASSED:
        reason = undecided if policy.parts.newest else remark
        yield reason("newest", f"{newer[-1].ulid} of the same suite and models began later and {newer[-1].ended}")
    if failed:
        most = policy.parts.attempts
        last = f"{failed[-1].ulid} {failed[-1].ended}"
        text = f"{len(failed)} earlier runs of this suite and these models did not pass; {last}"
        if most is not None and len(failed) > most:
            yield undecided("attempts", f"{text}; at most {most} are allowed")
        else:
            yield remark("attempts", text)


def fault_reasons(facts: RunFacts, policy: Policy) -> Iterator[Reason]:
    """Why arms are broken or lossy by their own declaration."""
    for arm in facts.candidates:
        if arm.fault and not policy.allow_known_bad:
            yield blocked("known_bad", f"arm {arm.name} is broken on purpose: {arm.fault}", arm.name)
        if policy.require_lossless and not arm.lossless:
            rule = arm.effective.protocol or arm.spec.get("verifier") or "unknown"
            yield blocked("lossless", f"arm {arm.name}: its rule {rule} declares itself lossy", arm.name)


ENGINE = "engine"
"""Kind of the effective configuration of an arm; its role is `engine/ARM`."""


def subject_reasons(
    facts: RunFacts, policy: Policy, subjects: Sequence[Subject], *, no_subject: bool
) -> Iterator[Reason]:
    """Reasons why the audited models are not the subjects to deploy."""
    wanted = [*(Subject(role, digest, "policy") for role, digest in policy.digests.items()), *subjects]
    yield from _unnamed(facts, policy, subjects, no_subject=no_subject)
    for subject in wanted:
        yield from _compared(facts, subject)


def _unnamed(facts: RunFacts, policy: Policy, subjects: Sequence[Subject], *, no_subject: bool) -> Iterator[Reason]:
    given = {subject.role for subject in subjects}
    for role in dict.fromkeys((*policy.named, *policy.named_if_used)):
        used = [part for part in (*used_artifacts(facts), *engines(facts)) if role in (part.role, part.kind)]
        unnamed = [part.role for part in used if part.role not in given]
        # a kind names all of its models, unless one of them has the kind as its own name
        by_kind = role in given and all(part.role != role for part in used)
        if by_kind or not (unnamed if used else role in policy.named):
            continue
        if no_subject:
            yield remark(f"subject {role}", "not named; --no-subject waived it")
        else:
            lacking = role if role not in given else unnamed[0]
            text = f"the policy wants it named; add --subject {lacking}=FOLDER, or say --no-subject"
            yield undecided(f"subject {role}", text)


def _compared(facts: RunFacts, subject: Subject) -> Iterator[Reason]:
    """Compare the subject's digest with every artifact of its role; artifacts with different digests are ambiguous."""
    requirement = f"subject {subject.role}"
    parts = [*used_artifacts(facts), *engines(facts)]
    # with that role or, if there is none, of that kind
    used = [part for part in parts if part.role == subject.role] or [
        part for part in parts if part.kind == subject.role
    ]
    matching = [artifact for artifact in used if artifact.sha256 == subject.sha256]
    if not used:
        known = ", ".join(sorted({name for part in used_artifacts(facts) for name in (part.role, part.kind)}))
        yield undecided(requirement, f"no candidate arm used such a thing; they used: {known}")
    elif not matching:
        text = f"{subject.origin} is sha256:{subject.sha256}, the run used sha256:{used[0].sha256}"
        yield blocked(requirement, text)
    elif len(matching) < len(used):
        names = ", ".join(sorted({artifact.role for artifact in used}))
        yield undecided(requirement, f"the run used several with different digests; name one of: {names}")


def engines(facts: RunFacts) -> list[ArtifactRef]:
    """The effective configuration of each candidate arm, by digest."""
    return [
        ArtifactRef(ENGINE, f"{ENGINE}/{arm.name}", arm.name, None, arm.configuration_sha256)
        for arm in facts.candidates
    ]


def used_artifacts(facts: RunFacts) -> list[ArtifactRef]:
    """The run's artifacts, without the draft models that the suite declares and no candidate arm used."""
    drafts = used_drafts([arm.spec for arm in facts.candidates])
    # an older record or another tool's may not name the models of an arm: then every model counts as used
    return [part for part in facts.run.artifacts if part.kind != "draft" or drafts is None or part.role in drafts]
